"""A callback is told of a run's begin, its rounds and its end, when they are written down, and may end it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedmef
from fedmef.errors import FedmefError, Interrupted, StopRun, UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation import loop
from fedmef.federation.api import evaluate_run
from fedmef.runs.callbacks import Callback, ModelNow
from fedmef.runs.directory import Run, read_finished
from fedmef.runs.records import Round
from fedmef.studies.many import carry_out, plan_runs
from fedmef.studies.rows import summarize_comparison
from tests.federation.small import TINY, AfterRounds, digest, interrupted_after

SETTINGS: dict[str, Any] = {**TINY, "rounds": 3}


class Diary(Callback):
    """Notes what it is told, and what is on the disk then."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.run: Run | None = None

    def run_begins(self, run: Run) -> None:
        self.run = run
        assert not run.finished
        self.told.append(("begins", len(run.finished_rounds())))

    def round_done(self, record: Round, model: object) -> None:
        assert self.run is not None
        written = Run.open(self.run.path)
        assert written.rounds[-1] == record
        assert len(written.finished_rounds()) == record.number  # there is a checkpoint
        self.told.append(("round", record.round))

    def run_ends(self, run: Run) -> None:
        assert run.finished
        self.told.append(("ends", run.summary.rounds))


def test_a_callback_is_told_of_everything_once_and_in_order(tmp_path: Path) -> None:
    one, other = Diary(), Diary()
    run = fedmef.run(Experiment(**SETTINGS), tmp_path / "run", callbacks=[one, other])
    assert one.told == [("begins", 0), ("round", 0), ("round", 1), ("round", 2), ("ends", 3)]
    assert other.told == one.told
    assert one.run is run


def test_of_a_resumed_run_only_what_is_left_is_told(tmp_path: Path) -> None:
    first, second = Diary(), Diary()
    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**SETTINGS), tmp_path / "run", callbacks=[first, interrupted_after(2)])
    fedmef.resume(tmp_path / "run", callbacks=[second])
    assert first.told == [("begins", 0), ("round", 0), ("round", 1)]
    assert second.told == [("begins", 2), ("round", 2), ("ends", 3)]


def test_of_a_finished_run_nothing_is_told(tmp_path: Path) -> None:
    fedmef.run(Experiment(**SETTINGS), tmp_path / "run")
    diary = Diary()
    fedmef.resume(tmp_path / "run", callbacks=[diary])
    assert diary.told == []


def test_a_callback_that_raises_stops_the_run_and_costs_nothing_that_was_done(tmp_path: Path) -> None:
    def fail(record: Round) -> None:
        raise FedmefError("on purpose")

    with pytest.raises(FedmefError, match="on purpose"):
        fedmef.run(Experiment(**SETTINGS), tmp_path / "run", callbacks=[AfterRounds(fail)])
    assert len(Run.open(tmp_path / "run").finished_rounds()) == 1
    whole = fedmef.run(Experiment(**SETTINGS), tmp_path / "whole", callbacks=[Callback()])
    assert digest(fedmef.resume(tmp_path / "run").path) == digest(whole.path)


class StopAfter(Callback):
    """Ends a run."""

    def __init__(self, number: int, why: str = "good enough") -> None:
        self._number, self._why = number, why

    def round_done(self, record: Round, model: object) -> None:
        if record.number == self._number:
            raise StopRun(self._why)


def test_a_function_is_a_callback_too(tmp_path: Path) -> None:
    seen: list[int] = []
    one, other = Diary(), Diary()
    every: list[Any] = [one, lambda record, model: seen.append(record.number), other]
    fedmef.run(Experiment(**SETTINGS), tmp_path / "run", callbacks=every)
    assert seen == [1, 2, 3]
    assert one.told == other.told


@pytest.mark.parametrize("model", ["small_cnn", "tests.federation.own_parts:opaque_network"])
def test_a_callback_gets_a_copy_of_the_model(model: str, tmp_path: Path) -> None:
    models: list[nn.Module] = []
    images = torch.zeros(2, 3, 8, 8)

    def keep_and_spoil(record: Round, model: ModelNow) -> None:
        models.append(model())
        for parameter in model().parameters():
            parameter.data.zero_()

    settings = {**SETTINGS, "rounds": 2, "model": model, "width": 4 if model == "small_cnn" else None}
    run = fedmef.run(Experiment(**settings), tmp_path / "run", callbacks=[keep_and_spoil])
    plain = fedmef.run(Experiment(**settings), tmp_path / "plain")
    assert digest(run.path) == digest(plain.path)
    last = fedmef.load(run.path, allow_code=True)(images).detach().numpy()
    first, second = (kept(images).detach().numpy() for kept in models)
    assert np.array_equal(second, last)
    assert not np.array_equal(first, last)
    assert not any(kept.training for kept in models)


def test_a_model_that_nobody_asks_for_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> nn.Module:
        raise AssertionError("nobody asked for it")

    monkeypatch.setattr(loop, "as_module", fail)
    assert fedmef.run(Experiment(**SETTINGS), tmp_path / "run", callbacks=[Diary()]).finished


def test_a_callback_may_end_the_run(tmp_path: Path) -> None:
    diary = Diary()
    settings = {**SETTINGS, "adjust_every": 9, "evaluate_every": 9}  # no round but the last is evaluated
    callbacks = [StopAfter(2), StopAfter(2, ""), diary]
    run = fedmef.run(Experiment(**settings), tmp_path / "run", callbacks=callbacks)
    assert diary.told == [("begins", 0), ("round", 0), ("round", 1), ("ends", 2)]
    assert (run.finished, run.complete, run.summary.rounds) == (True, False, 2)
    assert run.summary.stopped == "good enough; a callback asked for it"
    assert "stopped after 2 of 3 rounds: good enough" in repr(run)
    assert read_finished(run.path).experiment == Experiment(**settings)
    assert "stopped after 2 of 3 rounds: good enough" in summarize_comparison([run])[0].warning
    assert evaluate_run(run).accuracy == run.summary.test_accuracy
    two = fedmef.run(Experiment(**{**settings, "rounds": 2}), tmp_path / "two")
    assert digest(run.path) == digest(two.path)
    assert (two.summary.test_accuracy, two.summary.stopped) == (run.summary.test_accuracy, "")
    assert two.complete


@pytest.mark.parametrize(
    "changes", [{}, {"server_optimizer": "momentum"}, {"rate_schedule": "cosine", "keep_best": True}], ids=str
)
def test_a_run_that_was_stopped_can_be_resumed_to_the_same_bits(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    experiment = Experiment(**{**SETTINGS, **changes})
    whole = fedmef.run(experiment, tmp_path / "whole")
    fedmef.run(experiment, tmp_path / "cut", callbacks=[StopAfter(1)])
    again = fedmef.resume(tmp_path / "cut", callbacks=[StopAfter(2, "once more")])
    assert (again.summary.rounds, again.summary.stopped) == (2, "once more")
    resumed = fedmef.resume(tmp_path / "cut")
    assert (resumed.complete, resumed.summary.stopped) == (True, "")
    assert digest(resumed.path) == digest(whole.path)


def test_the_best_model_of_a_stopped_run_may_be_its_last(tmp_path: Path) -> None:
    """Which is scored only because the run stops there."""
    settings = {**SETTINGS, "adjust_every": 9, "evaluate_every": 9, "keep_best": True}
    run = fedmef.run(Experiment(**settings), tmp_path / "run", callbacks=[StopAfter(2)])
    best, last = (fedmef.load(run.path, best=best).state_dict() for best in (True, False))
    assert all(torch.equal(best[name], last[name]) for name in last)


def test_a_comparison_continues_what_was_stopped(tmp_path: Path) -> None:
    experiment = Experiment(**SETTINGS)
    fedmef.run(experiment, tmp_path / "run", callbacks=[StopAfter(1)])
    (planned,) = plan_runs({"run": experiment}, tmp_path)
    assert not planned.finished
    (outcome,) = carry_out([planned])
    assert isinstance(outcome, Run)
    assert outcome.complete


def test_who_stops_at_the_last_round_stops_nothing(tmp_path: Path) -> None:
    run = fedmef.run(Experiment(**SETTINGS), tmp_path / "run", callbacks=[StopAfter(3)])
    assert run.complete


@pytest.mark.parametrize("wrong", [[3], ["print"], [Callback], 3, None])
def test_what_is_no_callback_is_named_before_anything_is_written(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give a list of functions of"):
        fedmef.run(Experiment(**TINY), tmp_path / "run", callbacks=wrong)
    assert not (tmp_path / "run").exists()
