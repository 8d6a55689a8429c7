"""Workers that cannot start, and their replacements."""

import dataclasses
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines import Lost
from fedmef.federation.engines.processes import (
    FAILED,
    RESTARTS,
    ProcessEngine,
    WorkerError,
    _work,
    _Worker,
)
from fedmef.federation.preparation import open_dataset
from fedmef.federation.simulated.fleet import Fleet
from fedmef.wire.store import Store
from tests.federation.small import TINY as INLINE

TINY: dict[str, Any] = {**INLINE, "devices": 4, "engine": "processes", "workers": 1}


def test_an_error_while_a_worker_starts_is_told_and_leaves_the_scratch_folder_to_the_others(
    tmp_path: Path,
) -> None:
    ours, theirs = multiprocessing.Pipe()
    _work(theirs, Experiment(), tmp_path / "no-data", Store(tmp_path / "held"), tmp_path)
    answer = ours.recv_bytes()
    assert answer[:1] == FAILED
    lost = Lost.from_text(answer[1:].decode())
    assert "no-data" in lost.reason
    assert "Traceback" in lost.traceback
    assert tmp_path.is_dir()


def test_a_worker_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dataset = dataclasses.replace(open_dataset(Experiment(**TINY)), folder=tmp_path / "moved-away")
    with pytest.raises(FedmefError, match="moved-away") as failure:
        fedmef.run(Experiment(**TINY), tmp_path / "run", dataset=dataset)
    assert isinstance(failure.value.__cause__, WorkerError)
    assert "Traceback" in str(failure.value.__cause__)
    assert multiprocessing.active_children() == []
    assert list(tmp_path.iterdir()) == []


class Frail(ProcessEngine):
    """Its first replacements die while they start."""

    failures = 0

    def _start(self) -> _Worker:
        if not self._workers or self.failures == 0:
            return super()._start()
        self.failures -= 1
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=os._exit, args=(1,), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)


def run_with_failures(failures: int, out: Path) -> fedmef.Run:
    def start(fleet: Fleet) -> Frail:
        engine = Frail(fleet, 1)
        engine.failures = failures
        return engine

    return fedmef.run(Experiment(**TINY, faults="kill@0:0,kill@0:1"), out, start=start)


def test_a_replacement_that_dies_while_it_starts_is_replaced_in_turn(tmp_path: Path) -> None:
    (record,) = run_with_failures(RESTARTS, tmp_path / "run").rounds
    assert {failed.device for failed in record.lost} == {0, 1} & set(record.devices)


@pytest.mark.slow
def test_replacements_are_not_tried_for_ever(tmp_path: Path) -> None:
    with pytest.raises(FedmefError, match="a worker process could not start"):
        run_with_failures(RESTARTS + 1, tmp_path / "run")
