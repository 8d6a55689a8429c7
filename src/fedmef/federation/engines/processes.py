"""Persistent worker processes on one machine: each stands for whichever device is next.

On the native backend a worker is the shipped device (`light.py`), on PyTorch a process that has all of the
simulation (`spawned.py`). They read the data memory-mapped, so that the machine holds one copy. A worker that
dies or hangs costs its device's update and is replaced. Faults and attackers are injected here, around a
worker: it knows nothing of them.
"""

import selectors
import time
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from fedmef.errors import FedmefError, FedmefWarning
from fedmef.federation.engines.base import Lost
from fedmef.federation.engines.light import Devices, LightWorker
from fedmef.federation.engines.scratch import Scratch
from fedmef.federation.engines.spawned import SpawnedWorker
from fedmef.federation.engines.worker import Answer, Worker
from fedmef.federation.simulated.faults import InjectedFault, raise_fault
from fedmef.federation.simulated.fleet import Fleet
from fedmef.runs.records import DeviceReport, Failed, received_report

RESTARTS = 3  # of replacements in a row that could not start
SECONDS_TO_END = 5.0
SECONDS_STOPPED = 30.0  # after which a stopped process is reported
SECONDS_BETWEEN_LOOKS = 5.0


class WorkerError(Exception):
    """Carries a worker's own traceback, for --debug."""


class ProcessEngine:
    """Devices spread over worker processes; which worker trains which device changes no bit."""

    def __init__(self, fleet: Fleet, workers: int) -> None:
        self.reports: list[DeviceReport | Failed] = []
        self._fleet, self._deadline = fleet, fleet.experiment.deadline
        self._scratch = Scratch()
        self._workers: list[Worker] = []
        self._failed_starts = 0
        try:
            self._data = fleet.dataset.folder or self._scratch.folder / "data"
            if fleet.dataset.folder is None:
                fleet.dataset.write(self._data)
            for _ in range(workers):
                self._workers.append(self._start())
            while not all(worker.ready for worker in self._workers):
                for worker, _ in self._awaited(True):
                    self._welcome(worker, first=True)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def _start(self) -> Worker:
        experiment, store, method = self._fleet.experiment, self._fleet.store, self._fleet.experiment.method
        if experiment.backend != "native" or method.startswith("__main__:"):  # only this script has that one
            return SpawnedWorker.start(experiment, self._data, store, self._scratch.folder)
        own = method if ":" in method else None
        return LightWorker(Devices(self._data, self._fleet.shares, store, own, experiment.device_memory))

    def train(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Lost]:
        """What each device answers to its message."""
        waiting = list(messages)[::-1]
        answers: dict[int, Answer | Lost] = {}
        while len(answers) < len(messages):
            for worker in list(self._workers):
                while waiting and worker.ready and worker.device is None:
                    device = waiting.pop()
                    if lost := self._begin(worker, device, messages[device]):
                        answers[device] = lost
            for worker, event in self._awaited(bool(waiting)):
                if not worker.ready:
                    self._welcome(worker)
                elif worker.device is not None and worker in self._workers:  # it may be awaited twice
                    answers |= self._talk(worker, worker.device, event)
            for worker in list(self._workers):
                if worker.device is not None and worker.due is not None and time.monotonic() > worker.due:
                    assert self._deadline is not None
                    answers[worker.device] = Lost.too_late(self._deadline)
                    self._replace(worker)
        self.reports = []
        return {device: self._result(device, messages[device], answers[device]) for device in messages}

    def _begin(self, worker: Worker, device: int, message: bytes) -> Lost | None:
        """Let a worker stand for a device, with the device's fault; why it is lost, if it is at once."""
        fault = self._fleet.fault(device, message)
        worker.device = device
        worker.due = None if self._deadline is None else time.monotonic() + self._deadline
        if fault == "kill":
            worker.kill()
            return None
        if fault == "slow" and self._deadline is not None:
            return None  # no message, no answer: it is given up at the deadline, like one that hangs
        try:
            raise_fault(fault)
            worker.send(message)
        except InjectedFault as reason:
            worker.device = None
            return Lost(str(reason))
        except OSError:
            return self._replace_dead(worker)
        return None

    def _talk(self, worker: Worker, device: int, event: int) -> dict[int, Answer | Lost]:
        """Bring a worker more of its message, or take what it says; its device's answer, if that is all."""
        try:
            if event & selectors.EVENT_WRITE:
                worker.send_more()
            answer = worker.receive() if event & selectors.EVENT_READ else None
        except (EOFError, OSError):
            return {device: self._replace_dead(worker)}
        if answer is None:
            return {}
        worker.device = None
        return {device: answer}

    def _awaited(self, more: bool) -> list[tuple[Worker, int]]:
        """The workers that can be talked to, and how, at the latest when a deadline is over."""
        awaited = [worker for worker in self._workers if worker.device is not None or not worker.ready]
        dues = [worker.due for worker in awaited if worker.device is not None and worker.due is not None]
        timeout = max(0.0, min(dues) - time.monotonic()) + 0.001 if dues else SECONDS_BETWEEN_LOOKS
        self._report_stopped(awaited)
        with selectors.DefaultSelector() as selector:
            for worker in awaited:
                if worker.device is not None or more:  # a replacement is awaited when there is work for it
                    selector.register(worker.answers, selectors.EVENT_READ, worker)
                if (unsent := worker.unsent) is not None:
                    selector.register(unsent, selectors.EVENT_WRITE, worker)
            if not selector.get_map():
                return []  # every device was lost at once
            return [(key.data, event) for key, event in selector.select(timeout)]

    def _result(self, device: int, message: bytes, answer: Answer | Lost) -> bytes | Lost:
        if isinstance(answer, Lost):
            return answer
        try:
            content = self._fleet.tampered(device, message, answer.content)
        except Exception as error:  # a worker that says nonsense costs its own device's update
            return Lost.by_raising(device, error)
        self.reports.append(
            received_report(
                device,
                answer.seconds,
                answer.peak_memory,
                bytes_down=len(message),
                bytes_up=len(content),
            )
        )
        return content

    def _report_stopped(self, awaited: Sequence[Worker]) -> None:
        """A stopped process is waited for until its deadline. If it has none, a person must know."""
        now = time.monotonic()
        for worker in awaited:
            if worker.due is not None or worker.reported:
                continue
            if not worker.is_stopped:
                worker.stopped_since = None
            elif worker.stopped_since is None:
                worker.stopped_since = now
            elif now - worker.stopped_since >= SECONDS_STOPPED:
                worker.reported = True
                warnings.warn(
                    f"worker process {worker.pid} is stopped, and the run waits for it: 'kill -CONT "
                    f"{worker.pid}' continues it, and with a deadline it would be given up",
                    FedmefWarning,
                    stacklevel=2,
                )

    def _welcome(self, worker: Worker, *, first: bool = False) -> None:
        """A replacement may die of what the worker before it died of: there is another, a few times.

        One of the first is replaced if it was killed; what else is wrong with it is wrong with all.
        """
        try:
            _become_ready(worker)
            self._failed_starts = 0
        except FedmefError:
            self._failed_starts += 1
            if self._failed_starts > RESTARTS or (first and not worker.was_killed):
                raise
            self._replace(worker)

    def _replace_dead(self, worker: Worker) -> Lost:
        cause = worker.cause_of_death()
        self._replace(worker)
        return Lost(cause)

    def _replace(self, worker: Worker) -> None:
        worker.remove()
        self._workers[self._workers.index(worker)] = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            if kind is not None or not worker.ready:
                worker.kill()
            worker.dismiss()
        for worker in self._workers:
            worker.remove(patience=SECONDS_TO_END)
        self._scratch.remove()


def _become_ready(worker: Worker) -> None:
    """What is wrong with a worker shows before it gets any work."""
    answer: Answer | Lost | None = None
    try:
        while answer is None:
            answer = worker.receive()
    except (EOFError, OSError):
        raise FedmefError(worker.cause_of_death()) from None
    if isinstance(answer, Lost):
        raise FedmefError(answer.reason) from (WorkerError(answer.traceback) if answer.traceback else None)
    worker.ready = True
