"""Budget-aware extrusion: empty the weights that are about to be pruned (FedMef, section 3.3)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmef.nn import sparse_layers
from fedmef.sparsity import smallest_magnitudes


class MarkedWeights:
    """`θ_low`: in each layer the `ξ_l` active weights of smallest magnitude, marked on receipt."""

    def __init__(self, model: nn.Module, counts: Mapping[str, int]) -> None:
        layers = sparse_layers(model)
        self.marked = [
            # In 32 bits, and not as a part of all positions: this is alive during the whole round.
            (layers[name].values, smallest_magnitudes(layers[name].values.detach(), count).int())
            for name, count in counts.items()
        ]

    def squared_norm(self) -> Tensor:
        """`||θ_low||²₂` over all marked weights of the model, differentiable."""
        parts = [values.index_select(0, index).square().sum() for values, index in self.marked]
        return torch.stack(parts).sum() if parts else torch.zeros(())


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


class Extrusion:
    """The penalty and the learning rate of an adjustment round, as `LocalTraining.fit` asks for them.

    A step multiplies a marked weight by `1 − 2λμ`. Beyond `λ = 1 / (2μ)` plain descent would overshoot zero
    and in the end explode: there a step empties the weight and no more, however large `λ` is.
    """

    def __init__(self, marked: MarkedWeights, rate: BudgetAwareRate, strength: float) -> None:
        self.marked = marked
        self.rate = rate
        self.strength = strength  # λ
        self._rate_now = rate.initial

    def learning_rate(self, step: int) -> float:
        """`μ_t`."""
        self._rate_now = self.rate.value(step, float(self.marked.squared_norm().detach().sqrt()))
        return self._rate_now

    def penalty(self) -> Tensor:
        """`λ · ||θ_low||²₂`."""
        return min(self.strength, 0.5 / self._rate_now) * self.marked.squared_norm()
