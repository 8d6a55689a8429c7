"""What a device measures of itself in a round: seconds, peak memory, bytes."""

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DeviceReport:
    """One device's round.

    Attributes:
        device: its number.
        seconds: from the message's arrival to the answer.
        peak_memory: most resident bytes of the process that trained, interpreter and libraries included.
        bytes_down: length of the message.
        bytes_up: length of the answer.
    """

    device: int
    seconds: float
    peak_memory: int
    bytes_down: int
    bytes_up: int


def measured(train: Callable[[int, bytes], bytes], device: int, message: bytes) -> tuple[bytes, DeviceReport]:
    """What `train(device, message)` answers, and what that took."""
    _forget_peak()
    started = time.perf_counter()
    answer = train(device, message)
    seconds = time.perf_counter() - started
    return answer, DeviceReport(device, seconds, _peak_memory(), len(message), len(answer))


def _forget_peak() -> None:
    """On Linux the peak counts from here; elsewhere, or where it is forbidden, from the process's start."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak_memory() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
