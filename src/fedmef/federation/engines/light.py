"""A worker that is the shipped device and nothing else: `python -m fedmef.device --serve`.

What it measures of itself is what a device's whole process takes, and it can be held to a limit: by a control
group where this process may make one, otherwise by the limit that the device sets itself (`enforced.py`).
"""

import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from fedmef.costs.units import human_bytes
from fedmef.device.cgroup import MemoryGroup, memory_group
from fedmef.device.lost import Lost
from fedmef.device.process import ANSWER, DONE, FAILED, REQUEST
from fedmef.errors import UserError
from fedmef.federation.engines.worker import KILLED, ONE_THREAD, Answer, Worker, blocked_signals
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
        with ExitStack() as made:
            self._group = _group(devices.limit, made)
            with blocked_signals():
                self.process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
                )
            self._resources = made.pop_all()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._messages, self._answers = self.process.stdin, self.process.stdout
        os.set_blocking(self._messages.fileno(), False)  # it may be stopped, and never read

    def _command(self) -> list[str]:
        command = self._devices.command()
        if self._group is not None:
            return self._group.command(command)
        return command if self._devices.limit is None else [*command, "--memory", str(self._devices.limit)]

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
        return Answer(content, seconds, peak_memory)

    def kill(self) -> None:
        self.process.kill()

    def cause_of_death(self) -> str:
        limit = self._devices.limit
        if limit is not None and self._group is not None and self._group.killed:
            if self.ready:
                return f"out of memory: its process was killed at the limit of {human_bytes(limit)}"
            return f"device_memory = {human_bytes(limit)}: a device's process cannot even start; give it more"
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
        self._resources.close()


def _group(limit: int | None, made: ExitStack) -> MemoryGroup | None:
    """A control group with this limit; None when there is no limit, or no right to make one."""
    if limit is None:
        return None
    try:
        group = made.enter_context(memory_group(limit))
    except UserError:
        return None
    for other in group.folder.parent.glob("fedmef-*-*"):  # of processes that were killed
        if not Path("/proc", other.name.split("-")[1]).exists():
            with suppress(OSError):
                other.rmdir()
    return group
