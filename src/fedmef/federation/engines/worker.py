"""A worker process as the engine sees it: it stands for one device at a time, and may die or hang."""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedmef.device.choice import THREADS
from fedmef.device.lost import Lost
from fedmef.runs.signals import SIGNALS

ONE_THREAD = {"OMP_NUM_THREADS": "1", THREADS: "1"}  # workers with all cores each are slower
SECONDS_TO_DIE = 2.0  # of a process whose pipe is closed
KILLED = "killed, or out of memory (fewer workers need less)"


@dataclass(frozen=True)
class Answer:
    """What a device answered, and what it measured of itself."""

    content: bytes
    seconds: float = 0.0
    peak_memory: int = 0


class Worker(ABC):
    """A process and the pipe to it.

    Attributes:
        ready: it has said that it can train.
        device: which one it stands for, if it does; `due` is when that must have answered.
        stopped_since: when it was first seen stopped, as SIGSTOP does, if it is.
        reported: somebody was told of it.
    """

    ready: bool = False
    device: int | None = None
    due: float | None = None
    stopped_since: float | None = None
    reported: bool = False

    @property
    @abstractmethod
    def answers(self) -> int:
        """A file descriptor: when it can be read, `receive` is to be called."""

    @property
    def unsent(self) -> int | None:
        """A file descriptor: when it can be written, `send_more` is to be called; None when all is sent."""
        return None

    @abstractmethod
    def send(self, message: bytes) -> None:
        """Begin to bring a message for `device`; raises `OSError` when the process is gone."""

    def send_more(self) -> None:
        """Bring more of the message, as much as goes at once."""
        raise NotImplementedError

    @abstractmethod
    def receive(self) -> Answer | Lost | None:
        """What there is to read; None when more is to come. Raises `EOFError` or `OSError` for the dead."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Of the process."""

    @property
    @abstractmethod
    def was_killed(self) -> bool:
        """Whether a process that is gone was ended by a signal: another one may do better."""

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped, and will say nothing until somebody continues it."""
        try:  # nothing is taken away from whoever waits for its end
            found = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        except (ChildProcessError, AttributeError):  # gone; or a system that cannot tell
            return False
        return found is not None and found.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED)

    @abstractmethod
    def kill(self) -> None:
        """Kill the process, as the system might: who waits for its answer will notice."""

    @abstractmethod
    def cause_of_death(self) -> str:
        """Why a process that is gone gave no answer, or never became ready."""

    @abstractmethod
    def dismiss(self) -> None:
        """No more messages will come: an idle process ends by itself."""

    @abstractmethod
    def remove(self, patience: float = 0.0) -> None:
        """Give the process these seconds to end, then kill it; leave nothing of it."""


@contextmanager
def blocked_signals() -> Iterator[None]:
    """What is started in the block never gets them: Ctrl-C reaches the whole group, the parent decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
