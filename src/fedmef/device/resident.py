"""A process's resident memory, and giving freed memory back to the system.

glibc keeps most of what is freed for the next allocation, and a heap full of holes stays resident: up to
three times what is alive. A device with a memory limit hands larger blocks back at once instead.
"""

import ctypes
import sys
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")

# From glibc's malloc.h.
M_MMAP_THRESHOLD = -3
SMALLEST_RETURNED = 65_536


def give_back_freed_memory() -> None:
    """Return every freed block of 64 kB and more to the system at once, which costs time."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):  # glibc only
        mallopt(M_MMAP_THRESHOLD, SMALLEST_RETURNED)


def resident() -> int:
    """Bytes of this process in memory now; without /proc the most that there ever were."""
    return _status("VmRSS") if STATUS.exists() else _most_ever()


def peak_resident() -> int:
    """The most bytes in memory since `forget_peak`; where there is no /proc, since the process began."""
    return _status("VmHWM") if STATUS.exists() else _most_ever()


def forget_peak() -> None:
    """Begin a new measurement of `peak_resident`, where the system can."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return  # no Linux, or a sandbox: the peak then includes what was before


def _status(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _most_ever() -> int:
    import resource  # noqa: PLC0415  (not on Windows)

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
