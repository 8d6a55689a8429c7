"""Drop-and-grow: when masks are adjusted, by how much, and how (Algorithm 1, server)."""

import math
from dataclasses import dataclass

import numpy as np

from fedmef.errors import UserError
from fedmef.sparsity.arrays import Array, Bits, Integers, Places
from fedmef.sparsity.operations import Layer
from fedmef.sparsity.topk import smallest_magnitudes


@dataclass(frozen=True)
class AdjustmentSchedule:
    """Rounds that adjust, and the cosine rate `ζ_r = 0.2 (1 + cos(π r / R_stop))`.

    Attributes:
        every: rounds between adjustments (`ΔR`).
        until: last round that may adjust (`R_stop`).
    """

    every: int
    until: int

    def rate(self, round_number: int) -> float:
        """`ζ_r` in an adjustment round, 0 in every other round. Rounds count from 0."""
        if not 0 < round_number <= self.until or round_number % self.every:
            return 0.0
        return 0.2 * (1 + math.cos(math.pi * round_number / self.until))


def adjustment_count(rate: float, active: int, size: int) -> int:
    """`ξ_l = floor(ζ_r · n_l)`, at most as many as there are pruned positions to grow."""
    return min(math.floor(rate * active), size - active)


def weakest(positions: Integers, values: Array, layer: Layer, count: int) -> Integers:
    """Places of the `count` active weights of smallest magnitude, ascending in magnitude: what is dropped.

    A filter that is normalised keeps its two largest, because with fewer it would be dead. So there may be
    fewer than `count`.
    """
    if layer.normalization is None:
        return smallest_magnitudes(values, count)
    filters = (positions // layer.filter_size).astype(np.int32)
    free = np.flatnonzero(~_two_largest(np.abs(values), filters))
    return free[smallest_magnitudes(values[free], count)]


def _two_largest(magnitudes: Array, filters: Places) -> Bits:
    """Whether each weight is one of its filter's two largest, of equal ones the first; filters ascend."""
    kept = np.zeros(magnitudes.size, dtype=np.bool_)
    if not magnitudes.size:
        return kept
    starts = np.flatnonzero(np.diff(filters, prepend=-1))
    lengths = np.diff(starts, append=magnitudes.size)
    # A device has little memory: nothing is sorted, and nothing has 64 bits for each weight.
    for _ in range(2):
        peaks = np.repeat(np.maximum.reduceat(magnitudes, starts), lengths)
        largest = np.flatnonzero(magnitudes == peaks)
        largest = largest[np.flatnonzero(np.diff(filters[largest], prepend=-1))]
        kept[largest] = True
        magnitudes[largest] = -1
    return kept


def drop_and_grow(
    positions: Integers,
    values: Array,
    dropped: Integers,
    candidates: Places,
    scores: Array,
    initial: Array,
) -> tuple[Integers, Array]:
    """Drop active weights, and grow as many candidates, those of largest score.

    Args:
        positions: active positions, ascending; `values` are their weights.
        dropped: places of the weights that may go, first those that shall go first. Where there are fewer
            candidates, the last of them stay.
        candidates: pruned positions; `scores` are their (averaged) gradients, `initial` their first values.

    Returns:
        The new positions, ascending, and their values: exactly as many as before.
    """
    candidates = candidates.astype(np.int64, copy=False)
    if np.isin(candidates, positions).any():
        raise UserError("a candidate for growth is already active")
    count = min(dropped.size, candidates.size)
    grown = np.argsort(-np.abs(scores), kind="stable")[:count]
    kept = np.ones(positions.size, dtype=np.bool_)
    kept[dropped[:count]] = False
    unordered = np.concatenate([positions[kept], candidates[grown]])
    order = np.argsort(unordered)
    return unordered[order], np.concatenate([values[kept], initial[grown]])[order]
