"""A limit that a process sets itself: what it may have, and what happens at it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedmef.device import enforced
from fedmef.device.enforced import enforce_limit, parse_bytes
from fedmef.errors import UserError

LIMIT = 80_000_000

# Takes pieces of memory, and touches them, until there is no more; then gives all back and takes half of it.
PROGRAM = """
import json, sys
import numpy as np
from fedmef.device.enforced import enforce_limit
from fedmef.device.resident import peak_resident, resident

limit, size = map(int, sys.argv[1:])
before = resident()
enforce_limit(limit)
held = []
try:
    while True:
        held.append(np.ones(size // 8))
except MemoryError:
    taken = len(held) * size
    held.clear()
peak = peak_resident()
again = [np.ones(size // 8) for _ in range(taken // size // 2)]
print(json.dumps({"before": before, "taken": taken, "peak": peak, "again": len(again)}))
"""


def take_all(limit: int, size: int) -> dict[str, Any]:
    command = [sys.executable, "-c", PROGRAM, str(limit), str(size)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    table: dict[str, Any] = json.loads(ended.stdout)
    return table


@pytest.mark.parametrize("size", [2**20, 2**12])
def test_a_process_gets_what_its_limit_leaves_and_no_more(size: int) -> None:
    """Libraries and all: as address space in large blocks, and through the heap in small ones."""
    found = take_all(LIMIT, size)
    assert found["before"] < LIMIT
    assert 0.95 * LIMIT < found["peak"] < 1.05 * LIMIT
    assert found["taken"] == pytest.approx(LIMIT - found["before"], rel=0.1)
    assert found["again"] > 0


def test_a_process_that_has_more_already_is_refused() -> None:
    with pytest.raises(UserError, match=r"memory = 1,000,000 bytes: the process alone has .*; give it more"):
        enforce_limit(1_000_000)


@pytest.mark.parametrize("content", [None, "Name:\tpython\n", "VmRSS:\tmany kB\nVmData:\t1 kB\n"])
def test_a_system_that_cannot_say_what_a_process_has_cannot_limit_it(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status"
    if content is not None:
        status.write_text(content)
    monkeypatch.setattr(enforced, "STATUS", status)
    with pytest.raises(UserError, match="cannot enforce a limit"):
        enforce_limit(10**12)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MB", 64_000_000),
        ("64 MiB", 67_108_864),
        ("1.5GB", 1_500_000_000),
        ("1gib", 2**30),
        ("200k", 200_000),
        ("4096", 4096),
        ("7b", 7),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-64MB", "64 parsecs", "0", "0.0001", "1e9", "64 M B", "∞"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="say it as 64MB, 64MiB or a number of bytes"):
        parse_bytes(text)
