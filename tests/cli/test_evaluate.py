"""`fedmef evaluate` as a user meets it."""

import json
from pathlib import Path

import pytest

import fedmef
from tests.cli.invoking import Invoke, check_mistake
from tests.small import small, write_run


def test_a_run_is_evaluated_from_its_directory_alone(tmp_path: Path, invoke: Invoke) -> None:
    run = fedmef.run(small(rounds=1), tmp_path / "run")
    code, printed, errors = invoke("evaluate", str(run.path), "--json")
    assert (code, errors) == (0, "")
    answer = json.loads(printed)
    assert answer["test_accuracy"] == run.summary.test_accuracy
    assert answer["test_loss"] == pytest.approx(run.summary.test_loss)
    _, printed, _ = invoke("evaluate", str(run.path))
    assert printed.startswith(f"{run.path}: test accuracy {run.summary.test_accuracy:.2%}, loss ")


@pytest.mark.parametrize("damage", [b"", b"not a model", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_damaged_model_is_named(tmp_path: Path, damage: bytes, invoke: Invoke) -> None:
    run = write_run(tmp_path / "run", small(), [0.5])
    (run.path / "model.safetensors").write_bytes(damage)
    check_mistake(invoke("evaluate", str(run.path)), "model.safetensors is damaged")


def test_a_run_published_without_its_model_says_that_it_cannot_be_evaluated(
    tmp_path: Path, invoke: Invoke
) -> None:
    run = write_run(tmp_path / "run", small(dataset="cifar10"), [0.25, 0.5])
    (run.path / "model.safetensors").unlink()
    expected = "finished, but was published or copied without its model"
    check_mistake(invoke("evaluate", str(run.path)), expected)
    (run.path / "network.json").unlink()
    check_mistake(invoke("evaluate", str(run.path)), expected)


def test_data_that_do_not_fit_the_network_are_named(tmp_path: Path, invoke: Invoke) -> None:
    run = write_run(tmp_path / "run", small(), [0.5])  # its network takes one row of four pixels
    check_mistake(invoke("evaluate", str(run.path)), "dataset 'digits' has images of shape [1, 8, 8]")


def test_what_is_no_run_is_named(tmp_path: Path, invoke: Invoke) -> None:
    check_mistake(invoke("evaluate", str(tmp_path / "nowhere")), "nowhere")
    check_mistake(invoke("evaluate", str(tmp_path)), "is not a run directory")


def test_an_accelerator_that_is_not_there_is_named(tmp_path: Path, invoke: Invoke) -> None:
    run = fedmef.run(small(rounds=1), tmp_path / "run")
    check_mistake(invoke("evaluate", str(run.path), "--accelerator", "tpu"), "accelerator = 'tpu'")
