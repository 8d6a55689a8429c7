"""What a device measures of itself in a round: seconds and peak memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedmef.device.resident import forget_peak, peak_resident


@dataclass
class Measured:
    """Filled when the block of `measured` ends.

    Attributes:
        seconds: from the message's arrival to the answer.
        peak_memory: most resident bytes of the process that trained, interpreter and libraries included.
    """

    seconds: float = 0.0
    peak_memory: int = 0


@contextmanager
def measured() -> Iterator[Measured]:
    """Measure what the block takes."""
    result = Measured()
    forget_peak()
    started = time.perf_counter()
    yield result
    result.seconds = time.perf_counter() - started
    result.peak_memory = peak_resident()
