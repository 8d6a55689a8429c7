"""Growth scores: what a device sends of the gradients at pruned positions."""

from dataclasses import dataclass

from fedmef.sparsity.arrays import Array, Places


@dataclass(frozen=True, eq=False)
class GrowthScores:
    """The pruned positions of one layer whose gradients are largest, ascending, and these gradients."""

    positions: Places
    gradients: Array
