"""A limit on this process's memory that the system enforces: an allocation beyond it fails.

Linux limits the address space of private data (RLIMIT_DATA), which is not what is resident: libraries are
files, and some of their data is never touched. So what is resident now is taken into account, and only what
comes from now on is counted, as address space. It needs no rights, and a child inherits it.
"""

import re
from pathlib import Path

from fedmef.errors import UserError

STATUS = Path("/proc/self/status")
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_bytes(text: str) -> int:
    """`64MB`, `64MiB` or a number of bytes."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?) ?([kmg]i?|)b?", text.strip().lower())
    if found is None or (size := int(float(found[1]) * UNITS[found[2]])) <= 0:
        raise UserError(f"memory = '{text}': say it as 64MB, 64MiB or a number of bytes")
    return size


def enforce_limit(limit: int) -> None:
    """From now on, let this process have no more than `limit` bytes resident; raises if it has already."""
    try:
        import resource  # noqa: PLC0415  (not on Windows)

        status = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        resident, data = (int(status[name].split()[0]) * 1024 for name in ("VmRSS", "VmData"))
    except (ImportError, OSError, KeyError, ValueError):
        raise UserError("memory: this system cannot enforce a limit; leave it out") from None
    if resident >= limit:
        raise UserError(f"memory = {limit:,} bytes: the process alone has {resident:,}; give it more")
    most, hard = data + limit - resident, resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
