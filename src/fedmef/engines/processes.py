"""Persistent worker processes on one machine: each stands for whichever device is next.

Workers are spawned, not forked (OpenMP does not survive a fork), and read the data memory-mapped, so that the
machine holds one copy. Messages travel as bytes through pipes.
"""

import multiprocessing
import signal
import tempfile
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import torch

from fedmef.data import Dataset
from fedmef.engines.base import Lost
from fedmef.engines.fleet import Fleet
from fedmef.errors import FedmefError
from fedmef.experiment import Experiment
from fedmef.resident import give_back_freed_memory
from fedmef.wire import MaskMemory

# First byte of an answer.
DONE, FAILED = b"\0", b"\1"


class WorkerError(Exception):
    """Carries a worker's own traceback, for --debug."""


class ProcessEngine:
    """Devices spread over worker processes; which worker trains which device changes no bit."""

    def __init__(
        self, experiment: Experiment, dataset: Dataset, workers: int, memory: MaskMemory | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fedmef-")
        shared = dataset.folder
        if shared is None:
            shared = Path(self._folder.name) / "data"
            dataset.write(shared)
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, experiment, shared, memory), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        """What is wrong with a worker shows before anything else happens."""
        try:
            for connection in self._connections:
                _receive(connection)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            if isinstance(error, EOFError | OSError):
                raise FedmefError(
                    "a worker process could not start: a script that calls fedmef.run needs "
                    "'if __name__ == \"__main__\":' around it, or engine='inline'"
                ) from None
            raise

    def train(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Lost]:
        """What each device answers to its message."""
        waiting = list(messages)[::-1]
        answers: dict[int, bytes] = {}
        busy: dict[Connection, int] = {}
        try:
            for connection in self._connections[: len(messages)]:
                busy[connection] = _send(connection, waiting.pop(), messages)
            while busy:
                for ready in wait(list(busy)):
                    connection = cast(Connection, ready)
                    answers[busy.pop(connection)] = _receive(connection)
                    if waiting:
                        busy[connection] = _send(connection, waiting.pop(), messages)
        except (EOFError, OSError) as error:
            raise FedmefError(
                "a worker process died: killed, or out of memory (fewer workers need less)"
            ) from error
        return {device: answers[device] for device in messages}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections:
            connection.close()  # an idle worker ends by itself
        for process in self._processes:
            if kind is not None:
                process.terminate()
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()


def _send(connection: Connection, device: int, messages: Mapping[int, bytes]) -> int:
    connection.send_bytes(device.to_bytes(8, "little"))
    connection.send_bytes(messages[device])
    return device


def _receive(connection: Connection) -> bytes:
    answer = connection.recv_bytes()
    if answer[:1] == FAILED:
        reason, _, trace = answer[1:].decode().partition("\0")
        raise FedmefError(reason) from (WorkerError(trace) if trace else None)
    return answer[1:]


def _work(connection: Connection, experiment: Experiment, data: Path, memory: MaskMemory | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    torch.set_num_threads(1)
    if experiment.device_memory is not None:
        give_back_freed_memory()
    try:
        fleet = Fleet.build(experiment, Dataset.open(data), memory)
        connection.send_bytes(DONE)
        while True:
            device = int.from_bytes(connection.recv_bytes(), "little")
            try:
                connection.send_bytes(DONE + fleet.train(device, connection.recv_bytes()))
            except Exception as error:
                connection.send_bytes(FAILED + _explain(error, f"device {device} failed: "))
    except (EOFError, OSError):
        return  # the parent is done, or gone
    except Exception as error:
        connection.send_bytes(FAILED + _explain(error))


def _explain(error: Exception, prefix: str = "") -> bytes:
    reason = str(error) if isinstance(error, FedmefError) else f"{prefix}{type(error).__name__}: {error}"
    return f"{reason}\0{traceback.format_exc()}".encode()
