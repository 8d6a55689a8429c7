"""Mean and standard deviation of each channel, exact whatever the order of the images."""

import math

import numpy as np

from fedmef.sparsity.arrays import Bytes

CHUNK = 1024  # images at a time: counting copies them to 64 bits


def channel_statistics(images: Bytes) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images [N, C, H, W], divided by 255."""
    moments = [_moments(_histogram(images[:, channel])) for channel in range(images.shape[1])]
    means, stds = zip(*moments, strict=True)
    return means, stds


def _histogram(pixels: Bytes) -> list[int]:
    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, len(pixels), CHUNK):
        counts += np.bincount(pixels[start : start + CHUNK].reshape(-1), minlength=256)
    return [int(count) for count in counts]


def _moments(histogram: list[int]) -> tuple[float, float]:
    # Python's integers have no rounding, so neither do the sums.
    count = sum(histogram)
    total = sum(value * times for value, times in enumerate(histogram))
    squares = sum(value * value * times for value, times in enumerate(histogram))
    variance = (squares * count - total * total) / (count * count)
    # The floor is for a channel of one colour: a division by its deviation must stay finite.
    return total / count / 255, max(math.sqrt(variance) / 255, 1e-6)
