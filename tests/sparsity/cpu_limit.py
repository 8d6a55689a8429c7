"""An end for work that must not explode: its own CPU seconds, so that a busy machine changes nothing."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def cpu_seconds(limit: float) -> Iterator[None]:
    """Raise an error in the middle of a block that computes for longer."""

    def end(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still computing after {limit} CPU seconds")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
