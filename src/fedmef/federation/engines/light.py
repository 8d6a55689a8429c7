"""A worker that is the shipped device and nothing else: `python -m fedmef.device --serve`.

What it measures of itself is what a device's whole process takes, and it can be held to a limit.
"""

import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from fedmef.costs.units import human_bytes
from fedmef.device.lost import Lost
from fedmef.device.process import ANSWER, DONE, FAILED, REQUEST
from fedmef.federation.engines.process_limit import ProcessLimit
from fedmef.federation.engines.worker import (
    KILLED,
    ONE_THREAD,
    SECONDS_TO_DIE,
    Answer,
    Worker,
    blocked_signals,
)
from fedmef.sparsity.arrays import Integers
from fedmef.wire.container import MAXIMUM_BYTES
from fedmef.wire.store import Store

PIECE_BYTES = 2**20


@dataclass(frozen=True, eq=False)
class Devices:
    """What every such process is started with.

    Attributes:
        data: a folder of mapped arrays.
        shares: training samples of each device.
        method: of the user's own, as "package.module:Class"; or None.
        limit: bytes that a process may have; None: any.
    """

    data: Path
    shares: list[Integers]
    store: Store
    method: str | None = None
    limit: int | None = None

    def command(self) -> list[str]:
        """Without a limit."""
        # -P: the current folder does not come before what is installed, as with this process.
        command = [sys.executable, "-P", "-m", "fedmef.device", "--serve", "--trust-server"]
        command += ["--data", str(self.data.absolute()), "--store", str(self.store.folder.absolute())]
        return command if self.method is None else [*command, "--method", self.method]


class LightWorker(Worker):
    """A device's process."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._unsent: list[memoryview] = []
        self._received = bytearray()
        path = os.pathsep.join(dict.fromkeys(part or str(Path.cwd()) for part in sys.path))
        self._limit = None if devices.limit is None else ProcessLimit(devices.limit)
        command = devices.command()
        with ExitStack() as failed, blocked_signals():
            if self._limit is not None:
                failed.callback(self._limit.close)
                command = self._limit.command(command)
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
            )
            failed.pop_all()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._messages, self._answers = self.process.stdin, self.process.stdout
        os.set_blocking(self._messages.fileno(), False)  # it may be stopped, and never read

    @property
    def answers(self) -> int:
        return self._answers.fileno()

    @property
    def unsent(self) -> int | None:
        return self._messages.fileno() if self._unsent else None

    def send(self, message: bytes) -> None:
        assert self.device is not None
        share = self._devices.shares[self.device].tobytes()
        assert share  # to the device, none would mean all
        header = REQUEST.pack(self.device, len(share), len(message))
        self._unsent = [memoryview(header + share), memoryview(message)]
        self.send_more()

    def send_more(self) -> None:
        with suppress(BlockingIOError):
            while self._unsent:
                sent = os.write(self._messages.fileno(), self._unsent[0])
                self._unsent[0] = self._unsent[0][sent:]
                if not self._unsent[0]:
                    del self._unsent[0]

    def receive(self) -> Answer | Lost | None:
        piece = os.read(self._answers.fileno(), PIECE_BYTES)
        if not piece:
            raise EOFError
        self._received += piece
        if len(self._received) < ANSWER.size:
            return None
        status, seconds, peak_memory, length = ANSWER.unpack_from(self._received)
        missing = length - (len(self._received) - ANSWER.size)
        if status not in (DONE, FAILED) or length > MAXIMUM_BYTES or missing < 0 or self._unsent:
            raise OSError("what it says is no answer to its message")
        if missing:
            return None
        content = bytes(memoryview(self._received)[ANSWER.size :])
        self._received = bytearray()
        if status == FAILED:
            return Lost.from_text(content.decode(errors="replace"))
        if not self.ready and self._limit is not None:
            problem = self._limit.count_libraries(self.process.pid)
            if problem:
                return Lost(problem)
        return Answer(content, seconds, peak_memory)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def was_killed(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(SECONDS_TO_DIE)
        at_limit = self._limit is not None and self._limit.exceeded
        return (self.process.returncode or 0) < 0 and not at_limit

    def kill(self) -> None:
        self.process.kill()

    def cause_of_death(self) -> str:
        if self._limit is not None and self._limit.exceeded:
            if not self.ready:
                return self._limit.too_small("cannot even start")
            return f"out of memory: its process was killed at the limit of {human_bytes(self._limit.limit)}"
        return f"{'its worker process died' if self.ready else 'a worker process could not start'}: {KILLED}"

    def dismiss(self) -> None:
        self._messages.close()

    def remove(self, patience: float = 0.0) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.process.kill()
        self.process.wait()
        self._messages.close()
        self._answers.close()
        if self._limit is not None:
            self._limit.close()
