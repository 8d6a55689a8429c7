import numpy as np

from fedmef.device.measured import Measured, measured


def test_the_memory_and_time_that_a_block_took_are_measured() -> None:
    with measured() as large:
        np.ones(60_000_000, dtype=np.uint8)
    with measured() as small:
        pass
    assert large.seconds > 0
    assert large.peak_memory > small.peak_memory + 50_000_000 > 50_000_000


def test_nothing_is_measured_before_the_block_ends() -> None:
    with measured() as costs:
        assert costs == Measured(0.0, 0)
    assert costs.peak_memory > 0
