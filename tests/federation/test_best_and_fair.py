"""Accuracy by class and by device in the summary, and the best model kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmef
from fedmef.device.backend import open_backend
from fedmef.errors import Interrupted, UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.evaluation import evaluate
from fedmef.federation.preparation import open_dataset
from fedmef.runs.directory import Run
from fedmef.runs.records import Summary, worst_tenth
from tests.federation.small import TINY, interrupted_after

# A rate that is all but 0 after two rounds, and masks that stay: no later round can be better.
EARLY: dict[str, Any] = {
    **TINY,
    "rounds": 6,
    "learning_rate_decay": 1e-9,
    "decay_every": 2,
    "adjust_until": 0,
    "keep_best": True,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fedmef.run(Experiment(**EARLY), tmp_path_factory.mktemp("runs") / "run")


def test_the_summary_has_the_accuracy_of_every_class_and_of_the_worst_devices(run: Run) -> None:
    summary, test = run.summary, open_dataset(run.experiment).test
    shares = np.bincount(test.labels) / len(test)
    assert len(summary.class_accuracy) == 10
    known = [accuracy or 0.0 for accuracy in summary.class_accuracy]
    assert float((shares * known).sum()) == pytest.approx(summary.test_accuracy)
    assert summary.device_accuracy_mean is not None
    assert summary.device_accuracy_worst_tenth is not None
    assert 0 <= summary.device_accuracy_worst_tenth <= summary.device_accuracy_mean <= 1
    assert worst_tenth([0.5, 0.1, 0.9]) == [0.1]
    assert len(worst_tenth([0.5] * 21)) == 3


def test_a_summary_of_an_earlier_version_is_read(run: Run) -> None:
    new = {"class_accuracy", "device_accuracy_mean", "device_accuracy_worst_tenth"}
    old = Summary.model_validate_json(run.summary.model_dump_json(exclude=new))
    assert (old.class_accuracy, old.device_accuracy_mean) == ([], None)


def test_the_best_model_is_kept_through_a_resume(run: Run, tmp_path: Path) -> None:
    accuracies = [record.test_accuracy or 0 for record in run.rounds]
    assert accuracies.index(max(accuracies)) < 3, "the best round must come before the interruption"
    best = run.best_model()
    score = evaluate(open_backend(best.network), best.state, open_dataset(run.experiment).test)
    assert score.accuracy == max(accuracies) == run.summary.best_test_accuracy
    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**EARLY), tmp_path / "cut", callbacks=[interrupted_after(3)])
    fedmef.resume(tmp_path / "cut")
    assert (tmp_path / "cut" / "best.safetensors").read_bytes() == (
        run.path / "best.safetensors"
    ).read_bytes()
    assert fedmef.load(run.path, best=True) is not None


def test_a_run_that_kept_none_says_so(tmp_path: Path) -> None:
    plain = fedmef.run(Experiment(**TINY), tmp_path / "run")
    assert not (plain.path / "best.safetensors").exists()
    with pytest.raises(UserError, match="keep_best = true"):
        plain.best_model()
