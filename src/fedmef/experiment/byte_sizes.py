"""Sizes in bytes as people write them: 96MB, 64 MiB."""

import re
from typing import Any

UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parse_bytes(size: Any) -> Any:
    """`"96MB"` → 96,000,000 and `"64MiB"` → 67,108,864; numbers are bytes. Wrong ones raise `ValueError`."""
    if isinstance(size, str):
        written = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?b)\s*", size, re.IGNORECASE)
        if written is None or len(written[1]) > 15:
            raise ValueError("must be a number with a unit, such as 96MB or 64MiB")
        size = round(float(written[1]) * UNITS[written[2].lower()])
    if isinstance(size, int) and size < 1:
        raise ValueError("must be more than 0, such as 96MB")
    return size
