"""What a sparse network is, in NumPy: packed masks, densities, top-k, drop-and-grow, the network as data."""

from fedmef.sparsity.adjustment import AdjustmentSchedule, adjustment_count, drop_and_grow
from fedmef.sparsity.densities import Distribution, layer_counts
from fedmef.sparsity.growth import GrowthScores
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
from fedmef.sparsity.model import Model, State
from fedmef.sparsity.network import Network
from fedmef.sparsity.topk import largest_magnitudes, smallest_magnitudes

__all__ = [
    "AdjustmentSchedule",
    "Distribution",
    "GrowthScores",
    "Model",
    "Network",
    "State",
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
