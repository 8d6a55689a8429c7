"""Persistent worker processes on one machine: each stands for whichever device is next.

Workers are spawned, not forked (OpenMP does not survive a fork), and read the data memory-mapped, so that the
machine holds one copy. Messages travel as bytes through pipes. A worker that dies or hangs costs its device's
update and is replaced.
"""

import multiprocessing
import os
import shutil
import signal
import struct
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from fedmef.data import Dataset
from fedmef.device.choice import THREADS
from fedmef.device.measured import measured
from fedmef.device.resident import give_back_freed_memory
from fedmef.errors import FedmefError, NoAnswerError
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines.base import Lost
from fedmef.federation.engines.scratch import Scratch
from fedmef.federation.simulated.faults import Killed, TooLate
from fedmef.federation.simulated.fleet import Fleet
from fedmef.runs.records import DeviceReport
from fedmef.runs.signals import SIGNALS
from fedmef.wire.container import MAXIMUM_BYTES
from fedmef.wire.store import Store

# First byte of an answer.
DONE, FAILED = b"\0", b"\1"
RESTARTS = 3  # of replacements in a row that could not start
MEASURED = struct.Struct("<dq")  # seconds and peak memory, before a device's answer


class WorkerError(Exception):
    """Carries a worker's own traceback, for --debug."""


@dataclass(eq=False)
class _Worker:
    """A process and the pipe to it.

    Attributes:
        ready: it has said that it can train.
        device: which one it trains, if it does; `due` is when it must have answered.
    """

    process: BaseProcess
    connection: Connection
    ready: bool = False
    device: int | None = None
    due: float | None = None

    def send(self, device: int, message: bytes, deadline: float | None) -> None:
        self.device = device
        self.due = None if deadline is None else time.monotonic() + deadline
        self.connection.send_bytes(device.to_bytes(8, "little"))
        self.connection.send_bytes(message)

    def receive(self) -> bytes | Lost:
        self.device = None
        answer = self.connection.recv_bytes(MAXIMUM_BYTES)
        if answer[:1] == DONE:
            return answer[1:]
        return Lost.from_text(answer[1:].decode())

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class ProcessEngine:
    """Devices spread over worker processes; which worker trains which device changes no bit."""

    def __init__(self, fleet: Fleet, workers: int) -> None:
        self.reports: list[DeviceReport] = []
        self._experiment, self._store = fleet.experiment, fleet.store
        self._scratch = Scratch()
        self._data = fleet.dataset.folder
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        try:
            if self._data is None:
                self._data = self._scratch.folder / "data"
                fleet.dataset.write(self._data)
            for _ in range(workers):
                self._workers.append(self._start())
            for worker in self._workers:
                _become_ready(worker)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, self._experiment, self._data, self._store, self._scratch.folder)
        process = context.Process(target=_work, args=arguments, daemon=True)
        # A worker inherits what is blocked: Ctrl-C reaches the whole group, and the parent decides.
        resource_tracker.ensure_running()  # it would unblock signals when it starts
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return _Worker(process, ours)

    def train(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Lost]:
        """What each device answers to its message."""
        waiting = list(messages)[::-1]
        answers: dict[int, bytes | Lost] = {}
        while len(answers) < len(messages):
            for worker in list(self._workers):
                if waiting and worker.ready and worker.device is None:
                    device = waiting.pop()
                    try:
                        worker.send(device, messages[device], self._experiment.deadline)
                    except OSError:
                        answers[device] = self._replace_dead(worker)
            for worker in self._awaited(bool(waiting)):
                if not worker.ready:
                    self._welcome(worker)
                    continue
                assert worker.device is not None
                device = worker.device
                try:
                    answers[device] = worker.receive()
                except (EOFError, OSError):
                    answers[device] = self._replace_dead(worker)
            for worker in list(self._workers):
                if worker.device is not None and worker.due is not None and time.monotonic() > worker.due:
                    assert self._experiment.deadline is not None
                    answers[worker.device] = Lost.too_late(self._experiment.deadline)
                    self._replace(worker)
        self.reports = []
        for device in messages:
            answer = answers[device]
            if isinstance(answer, bytes):
                seconds, peak_memory = MEASURED.unpack_from(answer)
                answers[device] = answer = answer[MEASURED.size :]
                self.reports.append(
                    DeviceReport(
                        device=device,
                        seconds=seconds,
                        peak_memory=peak_memory,
                        bytes_down=len(messages[device]),
                        bytes_up=len(answer),
                    )
                )
        return {device: answers[device] for device in messages}

    def _awaited(self, more: bool) -> list[_Worker]:
        """The workers that have something to say, at the latest when a deadline is over."""
        awaited = {
            worker.connection: worker
            for worker in self._workers
            if worker.device is not None or (more and not worker.ready)
        }
        dues = [worker.due for worker in awaited.values() if worker.device is not None and worker.due]
        timeout = max(0.0, min(dues) - time.monotonic()) + 0.001 if dues else None
        return [awaited[connection] for connection in wait(list(awaited), timeout)]  # type: ignore[index]

    def _welcome(self, worker: _Worker) -> None:
        """A replacement may die of what the worker before it died of: there is another, a few times."""
        try:
            _become_ready(worker)
            self._failed_starts = 0
        except FedmefError:
            self._failed_starts += 1
            if self._failed_starts > RESTARTS:
                raise
            self._replace(worker)

    def _replace_dead(self, worker: _Worker) -> Lost:
        self._replace(worker)
        return Lost("its worker process died: killed, or out of memory (fewer workers need less)")

    def _replace(self, worker: _Worker) -> None:
        worker.kill()
        self._workers[self._workers.index(worker)] = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            if kind is not None or not worker.ready:
                worker.process.kill()
            worker.connection.close()  # an idle worker ends by itself
        for worker in self._workers:
            worker.process.join(timeout=5)
            worker.kill()
        self._scratch.remove()


def _become_ready(worker: _Worker) -> None:
    """What is wrong with a worker shows before it gets any work."""
    try:
        answer = worker.receive()
    except (EOFError, OSError):
        raise FedmefError(
            "a worker process could not start: a script that calls fedmef.run needs "
            "'if __name__ == \"__main__\":' around it, or engine='inline'; or it was killed, and fewer "
            "workers need less memory"
        ) from None
    if isinstance(answer, Lost):
        raise FedmefError(answer.reason) from (WorkerError(answer.traceback) if answer.traceback else None)
    worker.ready = True


def _work(connection: Connection, experiment: Experiment, data: Path, store: Store, scratch: Path) -> None:
    for variable in ("OMP_NUM_THREADS", THREADS):
        os.environ[variable] = "1"  # before a backend is loaded: workers with all cores each are slower
    if experiment.device_memory is not None:
        give_back_freed_memory()
    try:
        try:
            fleet = Fleet.build(experiment, Dataset.open(data), store)
            fleet.warm_up()
        except Exception as error:
            connection.send_bytes(_failed(_could_not_start(error)))
            return
        connection.send_bytes(DONE)
        while True:
            device = int.from_bytes(connection.recv_bytes(), "little")
            connection.send_bytes(_answer(fleet, device, connection))
    except (EOFError, OSError):
        shutil.rmtree(scratch, ignore_errors=True)  # the parent is done; if it was killed, it could not


def _could_not_start(error: Exception) -> Lost:
    unexpected = f"a worker process could not start: {type(error).__name__}: {error}"
    return Lost(str(error) if isinstance(error, FedmefError) else unexpected, traceback.format_exc())


def _answer(fleet: Fleet, device: int, connection: Connection) -> bytes:
    message = connection.recv_bytes()
    try:
        with measured() as costs:
            answer = fleet.train(device, message)
        return DONE + MEASURED.pack(costs.seconds, costs.peak_memory) + answer
    except Killed:
        os.kill(os.getpid(), signal.SIGKILL)
        raise
    except NoAnswerError as reason:
        if isinstance(reason, TooLate) and fleet.experiment.deadline is not None:
            connection.poll(None)  # hangs until the parent gives up, or ends
        return _failed(Lost(str(reason)))
    except Exception as error:
        return _failed(Lost.by_raising(device, error))


def _failed(lost: Lost) -> bytes:
    return FAILED + lost.to_text().encode()
