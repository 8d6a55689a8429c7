"""Budget-aware extrusion: empty the weights that are about to be pruned (FedMef, section 3.3)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmef.sparsity.adjustment import weakest
from fedmef.sparsity.arrays import Places
from fedmef.sparsity.model import Model

if TYPE_CHECKING:
    from fedmef.device.backend import Step


@dataclass(frozen=True, eq=False)
class Pull:
    """Weights that a training step pulls towards 0, by the gradient `2 λ θ` of the penalty `λ ||θ||²`.

    Attributes:
        marked: of each layer, places among its active values.
        strength: `λ`.
    """

    marked: Mapping[str, Places]
    strength: float


@dataclass(frozen=True, eq=False)
class Marked:
    """`θ_low`: in each layer the `ξ_l` weights that the server would drop now, marked on receipt.

    Attributes:
        places: of the marked weights among the layer's active values.
        norm: `||θ_low||₂` over all marked weights of the model, when they were marked.
    """

    places: Mapping[str, Places]
    norm: float


def mark_smallest(model_of: Callable[[str], Model], counts: Mapping[str, int]) -> Marked:
    """Mark `counts` weights of each layer named; `model_of` gives a model that has at least that layer."""
    places, squares = {}, 0.0
    for name, count in counts.items():
        model = model_of(name)
        values, layer = model.values(name), model.network.sparse_layers[name]
        places[name] = weakest(model.positions(name), values, layer, count).astype(np.int32)
        squares += float(np.square(values[places[name]]).sum())
    return Marked(places, math.sqrt(squares))


@dataclass(frozen=True)
class BudgetAwareRate:
    """The learning rate during extrusion: `μ_t = max(η_t, β_t)` (Eq. 3-4).

    `β_t = p(t) · (2σ(||θ_low||) − 1) · η₀` with REX's `p(t) = (2T − 2t) / (2T − t)`.

    Attributes:
        initial: `η₀`.
        ordinary: `η_t`, the learning rate that the schedule would have.
        budget: `T`, the steps that the device takes in this round.
    """

    initial: float
    ordinary: float
    budget: int

    def value(self, step: int, marked_norm: float) -> float:
        """The learning rate of step `t` (from 0), given `||θ_low||₂` now."""
        progress = (2 * self.budget - 2 * step) / (2 * self.budget - step)
        remaining = math.tanh(marked_norm / 2)  # 2σ(x) − 1, without overflow
        return max(self.ordinary, progress * remaining * self.initial)


@dataclass(frozen=True, eq=False)
class Extrusion:
    """The penalty `λ · ||θ_low||²₂` and the learning rate of an adjustment round, step by step.

    A step multiplies a marked weight by `1 − 2λμ`. Beyond `λ = 1 / (2μ)` plain descent would overshoot zero
    and in the end explode: there a step empties the weight and no more, however large `λ` is.
    """

    marked: Marked
    rate: BudgetAwareRate
    strength: float  # λ

    def schedule(self, step: int, before: "Step | None") -> tuple[float, Pull]:
        """`μ_t`, and what the step pulls towards 0."""
        rate = self.rate.value(step, self.marked.norm if before is None else before.pulled_norm)
        return rate, Pull(self.marked.places, min(self.strength, 0.5 / max(rate, 1e-30)))
