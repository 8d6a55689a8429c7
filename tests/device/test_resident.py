"""Resident memory, from inside of a process. Everything here runs in processes of their own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

BLOCK = 60_000_000
START = """
import numpy as np
from fedmef.device.resident import *
block = 60_000_000
"""


def printed(program: str) -> list[int]:
    """The numbers that a program prints."""
    command = [sys.executable, "-c", START + program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(word) for word in ended.stdout.split()]


def test_what_is_written_to_is_resident() -> None:
    before, during = printed("print(resident()); held = np.ones(block, np.uint8); print(resident())")
    assert during - before == pytest.approx(BLOCK, rel=0.05)


def test_the_peak_outlives_what_caused_it_until_it_is_forgotten() -> None:
    before, peak, now, again = printed(
        "print(resident()); np.ones(block, np.uint8); print(peak_resident(), resident()); "
        "forget_peak(); print(peak_resident())"
    )
    assert peak - before == pytest.approx(BLOCK, rel=0.05)
    assert now < before + BLOCK // 10
    assert again < before + BLOCK // 10


# 3 MB stay, with holes of 57 MB between them.
FRAGMENTS = """
before = resident()
kept = [np.ones(100_000, np.uint8) for _ in range(600)][::20]
print(resident() - before)
"""


def test_freed_blocks_are_given_back_even_between_others_that_stay() -> None:
    (usual,) = printed(FRAGMENTS)
    (given_back,) = printed("give_back_freed_memory()" + FRAGMENTS)
    assert given_back < 10_000_000
    assert given_back < usual
