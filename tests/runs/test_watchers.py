"""Who watches a run is told of its begin, its rounds and its end, when they are written down."""

from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.errors import FedmefError, Interrupted
from fedmef.experiment.settings import Experiment
from fedmef.runs.directory import Run
from fedmef.runs.records import Round
from fedmef.runs.watchers import Watcher
from tests.federation.small import TINY, AfterRounds, digest, interrupted_after

SETTINGS: dict[str, Any] = {**TINY, "rounds": 3}


class Diary(Watcher):
    """Notes what it is told, and what is on the disk then."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.run: Run | None = None

    def run_begins(self, run: Run) -> None:
        self.run = run
        assert not run.finished
        self.told.append(("begins", len(run.finished_rounds())))

    def round_done(self, record: Round) -> None:
        assert self.run is not None
        written = Run.open(self.run.path)
        assert written.rounds[-1] == record
        assert len(written.finished_rounds()) == record.number  # there is a checkpoint
        self.told.append(("round", record.round))

    def run_ends(self, run: Run) -> None:
        assert run.finished
        self.told.append(("ends", run.summary.rounds))


def test_a_watcher_is_told_of_everything_once_and_in_order(tmp_path: Path) -> None:
    one, other = Diary(), Diary()
    run = fedmef.run(Experiment(**SETTINGS), tmp_path / "run", watchers=[one, other])
    assert one.told == [("begins", 0), ("round", 0), ("round", 1), ("round", 2), ("ends", 3)]
    assert other.told == one.told
    assert one.run is run


def test_of_a_resumed_run_only_what_is_left_is_told(tmp_path: Path) -> None:
    first, second = Diary(), Diary()
    with pytest.raises(Interrupted):
        fedmef.run(Experiment(**SETTINGS), tmp_path / "run", watchers=[first, interrupted_after(2)])
    fedmef.resume(tmp_path / "run", watchers=[second])
    assert first.told == [("begins", 0), ("round", 0), ("round", 1)]
    assert second.told == [("begins", 2), ("round", 2), ("ends", 3)]


def test_of_a_finished_run_nothing_is_told(tmp_path: Path) -> None:
    fedmef.run(Experiment(**SETTINGS), tmp_path / "run")
    diary = Diary()
    fedmef.resume(tmp_path / "run", watchers=[diary])
    assert diary.told == []


def test_a_watcher_that_raises_stops_the_run_and_costs_nothing_that_was_done(tmp_path: Path) -> None:
    def fail(record: Round) -> None:
        raise FedmefError("on purpose")

    with pytest.raises(FedmefError, match="on purpose"):
        fedmef.run(Experiment(**SETTINGS), tmp_path / "run", watchers=[AfterRounds(fail)])
    assert len(Run.open(tmp_path / "run").finished_rounds()) == 1
    whole = fedmef.run(Experiment(**SETTINGS), tmp_path / "whole", watchers=[Watcher()])
    assert digest(fedmef.resume(tmp_path / "run").path) == digest(whole.path)
