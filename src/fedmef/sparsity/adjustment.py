"""Drop-and-grow: when masks are adjusted, by how much, and how (Algorithm 1, server)."""

import math
from dataclasses import dataclass

import numpy as np

from fedmef.errors import UserError
from fedmef.sparsity.arrays import Array, Integers
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


def drop_and_grow(
    positions: Integers, values: Array, candidates: Integers, scores: Array, count: int, initial: Array
) -> tuple[Integers, Array]:
    """Drop the `count` active weights of smallest magnitude, grow the `count` candidates of largest score.

    Args:
        positions: active positions, ascending; `values` are their weights.
        candidates: pruned positions; `scores` are their (averaged) gradients, `initial` their first values.
        count: how many to exchange; fewer are when there are fewer candidates or fewer active weights.

    Returns:
        The new positions, ascending, and their values: exactly as many as before.
    """
    if np.isin(candidates, positions).any():
        raise UserError("a candidate for growth is already active")
    count = min(count, candidates.size, positions.size)
    grown = np.argsort(-np.abs(scores), kind="stable")[:count]
    kept = np.ones(positions.size, dtype=np.bool_)
    kept[smallest_magnitudes(values, count)] = False
    unordered = np.concatenate([positions[kept], candidates[grown]])
    order = np.argsort(unordered)
    return unordered[order], np.concatenate([values[kept], initial[grown]])[order]
