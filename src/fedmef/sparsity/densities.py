"""How many weights each layer keeps: the same share everywhere, or more where layers are small (ERK)."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from fedmef.errors import UserError
from fedmef.sparsity.masks import active_count

Distribution = Literal["uniform", "erk"]


def layer_counts(
    shapes: Mapping[str, Sequence[int]],
    sparsity: float,
    distribution: Distribution = "uniform",
    *,
    least: int = 0,
) -> dict[str, int]:
    """Active weights per layer, given the layers' weight shapes, filters first.

    A layer with fewer than `least` weights a filter is given these, and the others give as many in proportion
    to what they have beyond: NSConv needs two, and a narrow layer would let nothing through. Only a network
    that is narrow everywhere ends with more weights than the sparsity says. A layer that would get none at
    all gets none.
    """
    if distribution == "uniform":
        counts = {name: active_count(math.prod(shape), sparsity) for name, shape in shapes.items()}
    elif distribution == "erk":
        counts = _erk_counts(shapes, sparsity)
    else:
        raise UserError(f"distribution = '{distribution}': must be 'uniform' or 'erk'")
    return _with_least(counts, shapes, least)


def _with_least(counts: dict[str, int], shapes: Mapping[str, Sequence[int]], a_filter: int) -> dict[str, int]:
    least = {
        name: min(a_filter * shape[0], math.prod(shape)) if counts[name] else 0
        for name, shape in shapes.items()
    }
    wanted = sum(max(0, least[name] - count) for name, count in counts.items())
    spare = {name: max(0, count - least[name]) for name, count in counts.items()}
    given = min(wanted, sum(spare.values()))
    if not wanted:
        return counts
    gives = {name: spare[name] * given // max(1, sum(spare.values())) for name in counts}
    for name in sorted(spare, key=lambda name: -spare[name])[: given - sum(gives.values())]:
        gives[name] += 1  # what rounding down has left
    return {name: max(count, least[name]) - gives[name] for name, count in counts.items()}


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
