"""Numbers as people read them: bytes, seconds, counts. Decimal units, as the paper uses."""


def human_bytes(count: float) -> str:
    """`12,345,678` → `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def byte_unit(largest: float) -> tuple[float, str]:
    """The unit in which a column of such numbers is shown: its size and its name."""
    for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= size:
            return size, name
    return 1, "B"


def in_unit(count: float, size: float) -> str:
    """A number of such a column: no digit too many, and none that makes it 0."""
    share = count / size
    return f"{share:.0f}" if size == 1 else f"{share:.1f}" if share >= 1 else f"{share:.2g}"


def human_time(seconds: float) -> str:
    """`12.3 s`, `4.5 m` or `2.1 h`."""
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 run`, `1,234 runs`; `many` for a word whose plural does not just end in s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def human_count(count: int) -> str:
    """`9,999`, `12.3 k` or `1.23 M`."""
    if count < 10_000:
        return f"{count:,}"
    return f"{count / 1e3:.1f} k" if count < 1e6 else f"{count / 1e6:.2f} M"
