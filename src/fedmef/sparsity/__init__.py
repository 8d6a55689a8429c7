"""Masks and how they change: bit-packing, layer densities, initialisation, drop-and-grow."""

from fedmef.sparsity.adjustment import AdjustmentSchedule, adjustment_count, drop_and_grow
from fedmef.sparsity.densities import Distribution, layer_counts
from fedmef.sparsity.masks import (
    active_count,
    active_positions,
    count_bits,
    magnitude_mask,
    mask_from_positions,
    pack_bits,
    random_mask,
    unpack_bits,
)
from fedmef.sparsity.topk import largest_magnitudes, smallest_magnitudes

__all__ = [
    "AdjustmentSchedule",
    "Distribution",
    "active_count",
    "active_positions",
    "adjustment_count",
    "count_bits",
    "drop_and_grow",
    "largest_magnitudes",
    "layer_counts",
    "magnitude_mask",
    "mask_from_positions",
    "pack_bits",
    "random_mask",
    "smallest_magnitudes",
    "unpack_bits",
]
