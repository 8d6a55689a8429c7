"""How many weights each layer keeps: the same share everywhere, or more where layers are small (ERK)."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from fedmef.errors import UserError
from fedmef.sparsity.masks import active_count

Distribution = Literal["uniform", "erk"]


def layer_counts(
    shapes: Mapping[str, Sequence[int]], sparsity: float, distribution: Distribution = "uniform"
) -> dict[str, int]:
    """Active weights per layer, given the layers' weight shapes."""
    if distribution == "uniform":
        return {name: active_count(math.prod(shape), sparsity) for name, shape in shapes.items()}
    if distribution == "erk":
        return _erk_counts(shapes, sparsity)
    raise UserError(f"distribution = '{distribution}': must be 'uniform' or 'erk'")


def _erk_counts(shapes: Mapping[str, Sequence[int]], sparsity: float) -> dict[str, int]:
    """Erdős–Rényi-kernel densities (Evci et al. 2020): a layer's density is proportional to
    `Σ dimensions / Π dimensions`; layers that would exceed 1 are dense, and the others share what is left.
    """
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    raw = {name: sum(shape) / sizes[name] for name, shape in shapes.items()}
    budget = active_count(sum(sizes.values()), sparsity)
    dense: set[str] = set()
    while len(dense) < len(shapes):
        left = budget - sum(sizes[name] for name in dense)
        factor = left / sum(raw[name] * sizes[name] for name in shapes if name not in dense)
        over = {name for name in shapes if name not in dense and factor * raw[name] > 1}
        if not over:
            break
        dense |= over
    # 3 + 8 of 24 weights is 23.999999999999996 in floating point
    return {
        name: size if name in dense else math.floor(factor * raw[name] * size + 1e-6)
        for name, size in sizes.items()
    }
