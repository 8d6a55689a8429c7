import subprocess
import sys

from fedmef.device.measured import Measured, measured

BLOCKS = """
import numpy as np
from fedmef.device.measured import measured
with measured() as large:
    np.ones(60_000_000, dtype=np.uint8)
with measured() as small:
    pass
assert large.seconds > 0
assert large.peak_memory > small.peak_memory + 50_000_000 > 50_000_000
"""


def test_the_memory_and_time_that_a_block_took_are_measured() -> None:
    """In a process of its own: one that had more memory before gets some of that again."""
    subprocess.run([sys.executable, "-c", BLOCKS], check=True)


def test_nothing_is_measured_before_the_block_ends() -> None:
    with measured() as costs:
        assert costs == Measured(0.0, 0)
    assert costs.peak_memory > 0
