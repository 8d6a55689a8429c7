"""A device's samples in the order in which it trains on them, gathered and augmented a batch at a time."""

from collections.abc import Iterator

import numpy as np

from fedmef.sparsity.arrays import Array, Bytes, Integers


def batches(
    images: Bytes,
    labels: Integers,
    indices: Integers,
    batch_size: int,
    generator: np.random.Generator,
    *,
    augmented: bool = False,
) -> Iterator[tuple[Bytes, Integers]]:
    """These samples once each, shuffled; the last batch may be smaller."""
    order = generator.permutation(indices)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        batch = images[chosen]
        yield augment(batch, generator) if augmented else batch, labels[chosen]


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
