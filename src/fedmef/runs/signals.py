"""Ctrl-C and SIGTERM: the first asks to stop after the current round, the second stops at once.

While a run stops, further signals are ignored: they would only interrupt its tidying up.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from fedmef.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)
NOTICE = b"\nfedmef: stopping after this round; once more stops at once\n"


class StopRequest:
    """Whether somebody asked to stop; it is the handler of the signals itself."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._stopping = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """A signal came."""
        if self._stopping:
            return
        if self.signal_number is not None:
            self._stopping = True
            raise Interrupted("stopped", number)
        self.signal_number = number
        with suppress(OSError):  # nobody may be reading
            os.write(2, NOTICE)  # print may be in the middle of a line of its own

    def check(self, message: str) -> None:
        """Raise `Interrupted` with this message when somebody asked to stop."""
        if self.signal_number is not None:
            self._stopping = True
            raise Interrupted(message, self.signal_number)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within the block signals ask to stop; a block inside another shares its request.

    Only the main thread gets signals: in any other thread nobody can ask.
    """
    for number in SIGNALS:
        if isinstance(present := signal.getsignal(number), StopRequest):
            yield present
            return
    request = StopRequest()
    before = {}
    try:
        try:
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and a shell's & ask for
                    before[number] = signal.signal(number, request)
        except ValueError:  # not the main thread
            pass
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """From here on this process only says why it ends, and ends."""
    with suppress(ValueError):  # not the main thread, which alone gets signals
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
