"""A worker that imports what the simulation has: for PyTorch, and for methods that only this script has.

It is spawned, not forked (OpenMP does not survive a fork), and reads the data memory-mapped.
"""

import multiprocessing
import os
import struct
import traceback
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedmef.data import Dataset
from fedmef.device.lost import Lost
from fedmef.device.measured import measured
from fedmef.device.resident import give_back_freed_memory
from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines.scratch import remove_scratch
from fedmef.federation.engines.worker import (
    KILLED,
    ONE_THREAD,
    SECONDS_TO_DIE,
    Answer,
    Worker,
    blocked_signals,
)
from fedmef.federation.simulated.fleet import Fleet
from fedmef.wire.container import MAXIMUM_BYTES
from fedmef.wire.store import Store

# First byte of an answer.
DONE, FAILED = b"\0", b"\1"
MEASURED = struct.Struct("<dq")  # seconds and peak memory, before a device's answer


class SpawnedWorker(Worker):
    """A process of `multiprocessing`."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process, self._connection = process, connection

    @classmethod
    def start(cls, experiment: Experiment, data: Path, store: Store, scratch: Path) -> "SpawnedWorker":
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, experiment, data, store, scratch), daemon=True)
        resource_tracker.ensure_running()  # it would unblock signals when it starts
        with blocked_signals():
            process.start()
        theirs.close()
        return cls(process, ours)

    @property
    def answers(self) -> int:
        return self._connection.fileno()

    def send(self, message: bytes) -> None:
        assert self.device is not None
        self._connection.send_bytes(self.device.to_bytes(8, "little"))
        self._connection.send_bytes(message)

    def receive(self) -> Answer | Lost | None:
        answer = self._connection.recv_bytes(MAXIMUM_BYTES)
        if answer[:1] != DONE:
            return Lost.from_text(answer[1:].decode())
        seconds, peak_memory = MEASURED.unpack_from(answer, 1)
        return Answer(answer[1 + MEASURED.size :], seconds, peak_memory)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def was_killed(self) -> bool:
        self.process.join(SECONDS_TO_DIE)
        return (self.process.exitcode or 0) < 0

    def kill(self) -> None:
        self.process.kill()

    def cause_of_death(self) -> str:
        if self.ready:
            return f"its worker process died: {KILLED}"
        return (
            "a worker process could not start: a script that calls fedmef.run needs "
            f"'if __name__ == \"__main__\":' around it, or engine='inline'; or it was {KILLED}"
        )

    def dismiss(self) -> None:
        self._connection.close()

    def remove(self, patience: float = 0.0) -> None:
        self.process.join(patience)
        self.process.kill()
        self.process.join()
        self._connection.close()


def work(connection: Connection, experiment: Experiment, data: Path, store: Store, scratch: Path) -> None:
    """What the process does; public only for tests."""
    os.environ |= ONE_THREAD  # before a backend is loaded
    if experiment.device_memory is not None:
        give_back_freed_memory()
    try:
        try:
            fleet = Fleet.build(experiment, Dataset.open(data), store)
            fleet.warm_up()
        except Exception as error:
            connection.send_bytes(_failed(_could_not_start(error)))
            return
        connection.send_bytes(DONE + MEASURED.pack(0.0, 0))
        while True:
            device = int.from_bytes(connection.recv_bytes(), "little")
            connection.send_bytes(_answer(fleet, device, connection.recv_bytes()))
    except (EOFError, OSError):
        remove_scratch(scratch)  # the parent is done; if it was killed, it could not


def _could_not_start(error: Exception) -> Lost:
    unexpected = f"a worker process could not start: {type(error).__name__}: {error}"
    return Lost(str(error) if isinstance(error, FedmefError) else unexpected, traceback.format_exc())


def _answer(fleet: Fleet, device: int, message: bytes) -> bytes:
    try:
        with measured() as costs:
            answer = fleet.train_honestly(device, message)
        return DONE + MEASURED.pack(costs.seconds, costs.peak_memory) + answer
    except Exception as error:  # whatever a device's code raises costs its own update only
        return _failed(Lost.by_raising(device, error))


def _failed(lost: Lost) -> bytes:
    return FAILED + lost.to_text().encode()
