"""A device's samples in the order in which it trains on them, gathered and augmented a batch at a time."""

import numpy as np

from fedmef.sparsity.arrays import Array, Integers
from fedmef.wire.job import LeftOver


def epoch(
    indices: Integers, batch_size: int, left_over: LeftOver, generator: np.random.Generator
) -> list[Integers]:
    """The samples of every step of one epoch, shuffled."""
    order = generator.permutation(indices)
    return np.split(order, np.cumsum(batch_sizes(len(order), batch_size, left_over)))[:-1]


def batch_sizes(samples: int, batch_size: int, left_over: LeftOver) -> list[int]:
    """How many samples each step of an epoch has.

    A small last batch is a step of full length in the direction of a few images. "even" makes all batches
    nearly equal, none larger than `batch_size`, in as many steps; "drop" leaves such a batch out, unless it
    is the only one; "keep" trains on it.
    """
    full, rest = divmod(samples, batch_size)
    if left_over == "even":
        steps = full + (rest > 0)
        return [samples // steps + (step < samples % steps) for step in range(steps)]
    return [batch_size] * full + ([rest] if rest and (left_over == "keep" or not full) else [])


def augment(images: Array, generator: np.random.Generator) -> Array:
    """Each image shifted by up to an eighth of its height, zeros coming in, and mirrored half of the time.

    For 32x32 images this is the usual random crop with a padding of 4.
    """
    count, _, height, width = images.shape
    padding = height // 8
    top, left = generator.integers(2 * padding + 1, size=(2, count))
    mirrored = generator.integers(2, size=count).astype(np.bool_)
    padded = np.pad(images, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    cropped: Array = windows[np.arange(count), :, top, left]  # [n, C, H, W]
    cropped[mirrored] = cropped[mirrored, :, :, ::-1]
    return cropped
