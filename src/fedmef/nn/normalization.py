"""NSConv's filter-wise normalisation of active weights (FedMef, Eq. 6-7), forward and backward.

    θ̂_i = γ · m_i ⊙ (θ_i − μ_i) / sqrt(n_i · σ_i² + ε)

Deviations from Eq. 7 as printed: the mask stands outside, so that pruned positions stay 0, and the divisor
has `sqrt(n_i)` instead of the factor `sqrt(c_in)`, so that a filter has norm γ whatever its size and density.
A filter with fewer than two active weights is dead: its output and its gradients are 0. One whose weights are
all equal gives 0 too, and learns at the pace of its layer's other filters.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedmef.errors import UserError

Scaling = Literal["filter", "paper"]


@dataclass(frozen=True)
class FilterNormalization:
    """The constants of NSConv.

    Attributes:
        gamma: `γ`, the norm that every filter gets.
        scaling: "filter" as above, or "paper": `γ / sqrt(c_in)` times the weights in units of their σ_i.
        input_channels: `c_in`, which only "paper" uses.
        epsilon: `ε`.
    """

    gamma: float = 1.0
    scaling: Scaling = "filter"
    input_channels: int = 1
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.scaling not in get_args(Scaling):
            raise UserError(f"scaling = '{self.scaling}': must be 'filter' or 'paper'")

    def standardize(self, values: Tensor, lengths: Tensor) -> "StandardizedFilters":
        """Normalise the active weights of a layer, given how many each filter has."""
        centered = values - _spread(_mean(values, lengths), lengths)
        energy = _sum(centered.square(), lengths)  # n_i · σ_i²
        inverse_norm = torch.rsqrt(energy + self.epsilon)
        # Equal weights, such as those that grew at 0, have θ̂ = 0 at any scale, but 1 / sqrt(ε) would multiply
        # their gradient by 1000: they get the scale of the layer's other filters.
        varied = energy > self.epsilon
        inverse_norm = torch.where(varied, inverse_norm, _mean_where(inverse_norm, varied)) * (lengths >= 2)
        target_norm = torch.full_like(energy, self.gamma)
        if self.scaling == "paper":
            target_norm = target_norm * torch.sqrt(lengths.to(energy) / self.input_channels)
        return StandardizedFilters(centered, lengths, inverse_norm, target_norm)


@dataclass(frozen=True)
class StandardizedFilters:
    """The active weights of a layer, centred per filter, with what scales them to θ̂."""

    centered: Tensor  # [n_l]
    lengths: Tensor  # [filters], n_i
    inverse_norm: Tensor  # [filters], 1 / sqrt(n_i σ_i² + ε), or 0 for a dead filter
    target_norm: Tensor  # [filters], γ for scaling="filter"

    @property
    def scale(self) -> Tensor:
        """What takes a centred weight to θ̂, per filter; 0 for a dead filter."""
        return self.target_norm * self.inverse_norm

    @property
    def growth_scale(self) -> Tensor:
        """What a pruned position's gradient is multiplied with, per filter.

        A dead filter gets the mean of the others: its own would be 0 and it could never grow back, or
        `γ / sqrt(ε)` and it would take all that grows.
        """
        living = self.lengths >= 2
        return torch.where(living, self.scale, _mean_where(self.scale, living))

    @property
    def values(self) -> Tensor:
        """θ̂ at the active positions."""
        return self.centered * _spread(self.scale, self.lengths)

    def backward(self, gradient: Tensor) -> Tensor:
        """The gradient for θ, given the one for θ̂; it flows through μ and σ too."""
        along = _sum(self.centered * gradient, self.lengths) * self.inverse_norm.square()
        tangent = gradient - _spread(_mean(gradient, self.lengths), self.lengths)
        tangent -= self.centered * _spread(along, self.lengths)
        return tangent * _spread(self.scale, self.lengths)


def _sum(values: Tensor, lengths: Tensor) -> Tensor:
    return torch.segment_reduce(values, "sum", lengths=lengths)


def _mean(values: Tensor, lengths: Tensor) -> Tensor:
    return _sum(values, lengths) / lengths.clamp(min=1)


def _mean_where(per_filter: Tensor, chosen: Tensor) -> Tensor:
    """The mean over the chosen filters, 0 if there is none."""
    return (per_filter * chosen).sum() / chosen.sum().clamp(min=1)


def _spread(per_filter: Tensor, lengths: Tensor) -> Tensor:
    return per_filter.repeat_interleave(lengths)
