"""A run is executed by one backend from its first round to its last, and says which."""

import json
from pathlib import Path

import pytest

import fedmef
from fedmef.device import choice
from fedmef.device.choice import Choice, missing_kernels
from fedmef.errors import Interrupted, UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.api import evaluate_run
from fedmef.federation.preparation import prepare
from fedmef.runs.directory import Run
from tests.federation.small import TINY, digest, interrupted_after

NATIVE = missing_kernels() == ""
needs_kernels = pytest.mark.skipif(not NATIVE, reason="the native kernels are not built")


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "missing_kernels", lambda: "there are no kernels")
    monkeypatch.setattr("fedmef.device.backend.missing_kernels", lambda: "there are no kernels")


def executed(run: Run) -> set[str]:
    return {record.backend for record in run.rounds}


def test_the_choice_is_made_once_and_holds_for_all_devices() -> None:
    prepared = prepare(Experiment(**TINY))
    assert prepared.experiment.backend == prepared.choice.name == ("native" if NATIVE else "torch")
    dense = prepare(Experiment(**TINY, method="fedavg"))
    assert dense.experiment.backend == dense.choice.name == "torch"
    assert prepare(Experiment(**TINY, backend="torch")).choice == Choice("torch")


def test_a_run_without_kernels_runs_on_torch_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_kernels(monkeypatch)
    run = fedmef.run(Experiment(**TINY), tmp_path / "run")
    assert executed(run) == {run.summary.backend} == {"torch"}
    assert run.summary.backend_details == "torch: there are no kernels"
    assert run.experiment.backend == "auto"  # what was asked for
    with pytest.raises(UserError, match="backend = 'native': there are no kernels"):
        fedmef.run(Experiment(**TINY, backend="native"), tmp_path / "native")
    assert not (tmp_path / "native").exists()


@needs_kernels
def test_a_run_on_native_says_so_and_is_evaluated_there(tmp_path: Path) -> None:
    run = fedmef.run(Experiment(**TINY), tmp_path / "run")
    assert executed(run) == {run.summary.backend} == {"native"}
    assert run.summary.backend_details.startswith("native (")
    assert evaluate_run(run).loss == run.summary.test_loss


@needs_kernels
def test_a_run_that_began_on_torch_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(**{**TINY, "rounds": 3})
    whole = fedmef.run(experiment.model_copy(update={"backend": "torch"}), tmp_path / "whole")
    with monkeypatch.context() as before:
        without_kernels(before)
        with pytest.raises(Interrupted):
            fedmef.run(experiment, tmp_path / "cut", callbacks=[interrupted_after(1)])
    resumed = fedmef.resume(tmp_path / "cut")
    assert executed(resumed) == {"torch"}
    assert digest(resumed.path) == digest(whole.path)
    assert executed(fedmef.resume(tmp_path / "cut", {"rounds": 4})) == {"torch"}


@needs_kernels
def test_a_run_that_began_on_native_is_not_resumed_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment(**{**TINY, "rounds": 3})
    with pytest.raises(Interrupted):
        fedmef.run(experiment, tmp_path / "cut", callbacks=[interrupted_after(1)])
    with monkeypatch.context() as elsewhere:
        without_kernels(elsewhere)
        with pytest.raises(UserError, match="backend = 'native': there are no kernels"):
            fedmef.resume(tmp_path / "cut")
    whole = fedmef.run(experiment, tmp_path / "whole")
    assert digest(fedmef.resume(tmp_path / "cut").path) == digest(whole.path)


def test_a_run_from_before_there_were_kernels_ran_on_torch(tmp_path: Path) -> None:
    run = fedmef.run(Experiment(**TINY, backend="torch"), tmp_path / "run")
    for name, fields in (("metrics.jsonl", ["backend"]), ("summary.json", ["backend", "backend_details"])):
        table = json.loads((run.path / name).read_text())
        for field in fields:
            del table[field]
        (run.path / name).write_text(json.dumps(table) + "\n")
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace('backend = "torch"', 'backend = "auto"'))
    again = fedmef.resume(run.path, {"rounds": 2})
    assert executed(again) == {"torch"}
