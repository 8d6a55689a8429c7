"""Workers that cannot start, and their replacements."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines import Fleet, ProcessEngine
from fedmef.federation.engines.processes import FAILED, RESTARTS, _work, _Worker

TINY: dict[str, Any] = {
    "dataset": "synthetic",
    "synthetic_size": 8,
    "synthetic_train": 160,
    "synthetic_test": 40,
    "width": 4,
    "devices": 4,
    "devices_per_round": 3,
    "rounds": 1,
    "local_epochs": 1,
    "batch_size": 64,
    "engine": "processes",
    "workers": 1,
}


def test_an_error_while_a_worker_starts_is_told_and_leaves_the_scratch_folder_to_the_others(
    tmp_path: Path,
) -> None:
    ours, theirs = multiprocessing.Pipe()
    _work(theirs, Experiment(), tmp_path / "no-data", None, tmp_path)
    answer = ours.recv_bytes()
    assert answer[:1] == FAILED
    assert b"no-data" in answer
    assert tmp_path.is_dir()


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
        engine = Frail(fleet.experiment, fleet.dataset, 1, fleet.memory)
        engine.failures = failures
        return engine

    return fedmef.run(Experiment(**TINY, faults="kill@0:0,kill@0:1"), out, start=start)


def test_a_replacement_that_dies_while_it_starts_is_replaced_in_turn(tmp_path: Path) -> None:
    (record,) = run_with_failures(RESTARTS, tmp_path / "run").metrics
    assert {entry["device"] for entry in record["lost"]} == {0, 1} & set(record["devices"])


@pytest.mark.slow
def test_replacements_are_not_tried_for_ever(tmp_path: Path) -> None:
    with pytest.raises(FedmefError, match="a worker process could not start"):
        run_with_failures(RESTARTS + 1, tmp_path / "run")
