"""`fedmef plan` as a user meets it. A formula stands for the measurement."""

import json
import shlex
from pathlib import Path

import pytest

from fedmef.costs import device_process
from fedmef.costs.device_process import ProcessCost
from fedmef.experiment.files import read_experiment
from fedmef.experiment.settings import Experiment
from tests.cli.invoking import QUICK, Invoke, check_mistake
from tests.costs.formula import process


def test_a_plan_is_a_ranked_table(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def needs(experiment: Experiment, shape: object, classes: int) -> ProcessCost:
        if experiment.method == "fedavg":
            return process(890e6, "torch")
        return process(1e6 * experiment.batch_size * (1 - experiment.sparsity))

    monkeypatch.setattr(device_process, "_once", needs)
    arguments = ["plan", "--image-shape", "3x32x32", "--batch-size", "64", "--device-memory", "10MB"]
    code, printed, _ = invoke(*arguments)
    assert code == 0
    *_, about, command = printed.splitlines()
    assert about == "Planned for 3x32x32 images. To run it, name data of this shape:"
    assert command == (
        "fedmef run --dataset YOURS --batch-size 16 --device-memory 10MB "
        "--sparsity 0.5 --activation-sparsity 0.5 --cache-dtype fp32"
    )
    (best,) = [line for line in printed.splitlines() if line.startswith(">")]
    formula, unit = best.split()[5:7]
    assert (float(formula) > 0, unit) == (True, "MB")
    assert best.split()[1:5] + best.split()[7:] == ["0.5", "0.5", "fp32", "16", "8.0", "MB", "fits"]
    assert "a device's whole process on the native backend" in printed
    assert "PyTorch's dense process (fedavg, batch 64): 890.0 MB" in printed
    assert any(line.endswith("too much") for line in printed.splitlines())

    _, printed, _ = invoke(*arguments, "--dataset", "cifar10")
    *_, about, command = printed.splitlines()
    assert (about, "--dataset cifar10" in command) == ("To run it:", True)

    code, printed, _ = invoke(*arguments, "--json", "--sparsity", "0.9")
    answer = json.loads(printed)
    ranked = answer["ranked"]
    assert answer["torch_dense_process"] == 890_000_000
    assert all(row["estimated"] > 0 and row["backend"] == "native" for row in ranked)
    chosen = [row for row in ranked if row["chosen"]]
    assert [(row["sparsity"], row["batch_size"], row["needed"]) for row in chosen] == [(0.9, 64, 6_400_000)]


def test_a_plan_ends_with_a_command_that_runs_it(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_process, "_once", lambda asked, *_: process(1000 * asked.batch_size))
    config = tmp_path / "my own.toml"
    config.write_text('device_memory = "10kB"\nrounds = 1\n')
    options = ["--no-remember-masks", "--augment", "--sparsity", "0.8", "--batch-size", "16"]
    code, printed, _ = invoke("plan", str(config), *QUICK, *options)
    assert code == 0
    program, *command = shlex.split(printed.splitlines()[-1])
    assert program == "fedmef"
    assert invoke(*command, "--out", str(tmp_path / "run")).code == 0
    experiment = read_experiment(tmp_path / "run" / "config.toml")
    assert (experiment.sparsity, experiment.batch_size, experiment.width) == (0.8, 8, 4)
    assert (experiment.remember_masks, experiment.augment) == (False, True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--device-memory 96MB"),
        (["--device-memory", "64MB", "--image-shape", "32x32"], "--image-shape 32x32"),
        (["--device-memory", "64MB", "--image-shape", "0x32x32"], "--image-shape 0x32x32"),
        (["--device-memory", "64MB", "--classes", "4"], "it goes with --image-shape"),
        (["--device-memory", "64MB", "--model", "resnet81"], "did you mean 'resnet18'"),
    ],
)
def test_a_mistake_is_a_line(arguments: list[str], expected: str, invoke: Invoke) -> None:
    check_mistake(invoke("plan", *arguments), expected)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("fedmef", ""),
        ("prunefl", "fedmef: every device needs PyTorch: the method needs torch\n"),
    ],
)
def test_a_plan_says_first_what_needs_pytorch(
    method: str, said: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_process, "_once", lambda *_: process(1000))
    arguments = ["plan", "--image-shape", "1x8x8", "--width", "4", "--device-memory", "10MB"]
    code, _, errors = invoke(*arguments, "--method", method)
    assert (code, errors) == (0, said)
