import numpy as np
import pytest

from fedmef.data.statistics import channel_statistics


def test_statistics_of_two_values_are_their_middle_and_half_distance() -> None:
    images = np.array([[0, 51], [255, 51]], dtype=np.uint8).reshape(2, 2, 1, 1)
    mean, std = channel_statistics(images)
    assert mean == pytest.approx((0.5, 0.2))
    assert std == pytest.approx((0.5, 1e-6))


def test_statistics_agree_with_numpy_over_many_chunks() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3000, 2, 3, 3), dtype=np.uint8)
    mean, std = channel_statistics(images)
    floats = images / 255
    np.testing.assert_allclose(mean, floats.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(std, floats.std((0, 2, 3)), rtol=1e-6)


def test_the_order_of_images_makes_no_difference() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2000, 1, 3, 3), dtype=np.uint8)
    assert channel_statistics(images) == channel_statistics(images[::-1])
