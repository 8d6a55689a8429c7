"""Exact top-k by magnitude. Ties go to the lower position: the choice never depends on the machine."""

import numpy as np

from fedmef.sparsity.arrays import Array, Integers


def largest_magnitudes(values: Array, count: int) -> Integers:
    """Positions, ascending, of the `count` largest `|values|` of a vector.

    Zeros are never chosen: a vector with fewer non-zero elements than `count` gives all of these.
    """
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    magnitudes = np.abs(values)
    nonzero = np.flatnonzero(magnitudes)
    if nonzero.size <= count:
        return nonzero
    threshold = np.partition(magnitudes, magnitudes.size - count)[magnitudes.size - count]
    chosen = magnitudes > threshold
    tied = np.flatnonzero(magnitudes == threshold)
    chosen[tied[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def smallest_magnitudes(values: Array, count: int) -> Integers:
    """Positions of the `count` smallest `|values|`, ascending in magnitude."""
    return np.argsort(np.abs(values), kind="stable")[:count]
