"""NSConv's filter-wise normalisation of active weights (FedMef, Eq. 6-7), forward and backward.

    θ̂_i = γ · m_i ⊙ (θ_i − μ_i) / sqrt(n_i · σ_i² + ε)

Deviations from Eq. 7 as printed: the mask stands outside, so that pruned positions stay 0, and the divisor
has `sqrt(n_i)` instead of the factor `sqrt(c_in)`, so that a filter has norm γ whatever its size and density.
A filter with fewer than two active weights is dead: its output and its gradients are 0. One whose weights are
all equal gives 0 too, and learns at the pace of its layer's other filters: below an energy `n_i σ_i²` of ε,
`1 / sqrt(n_i σ_i² + ε)` goes over linearly to the mean of theirs.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedmef.errors import UserError
from fedmef.sparsity.operations import Normalization

Scaling = Literal["filter", "paper"]


@dataclass(frozen=True)
class FilterNormalization(Normalization):
    """The constants of NSConv, and what they do.

    Attributes:
        gamma: `γ`, the norm that every filter gets.
        scaling: "filter" as above, or "paper": `γ / sqrt(c_in)` times the weights in units of their σ_i. That
            is the printed Eq. 7 with the mask outside and the `1 / c_in` of its proof.
        input_channels: `c_in`, which only "paper" uses.
        epsilon: `ε`.
    """

    def __post_init__(self) -> None:
        if self.scaling not in get_args(Scaling):
            raise UserError(f"scaling = '{self.scaling}': must be 'filter' or 'paper'")

    def standardize(
        self, values: Tensor, lengths: Tensor, statistics: Tensor | None = None
    ) -> "StandardizedFilters":
        """Normalise the active weights of a layer, given how many each filter has.

        `statistics` are those of the same weights if they were standardised before.
        """
        if statistics is not None:
            mean, inverse_norm = statistics
            centered = values - _spread(mean, lengths, values)
        else:
            mean = _mean(values, lengths)
            centered = values - _spread(mean, lengths, values)
            inverse_norm = self._inverse_norm(_sum(centered.square(), lengths), lengths)
        target_norm: Tensor | float = self.gamma
        if self.scaling == "paper":
            target_norm = self.gamma * torch.sqrt(lengths.to(mean) / self.input_channels)
        return StandardizedFilters(centered, lengths, mean, inverse_norm, inverse_norm * target_norm)

    def _inverse_norm(self, energy: Tensor, lengths: Tensor) -> Tensor:
        """`1 / sqrt(n_i σ_i² + ε)`, given `n_i σ_i²`."""
        inverse_norm = torch.rsqrt(energy + self.epsilon)
        # Equal weights, such as those that grew at 0, have θ̂ = 0 at any scale, but 1 / sqrt(ε) would multiply
        # their gradient by 1000: they get the scale of the layer's other filters, and below ε the scale goes
        # over to that without a jump.
        usual = _mean_where(inverse_norm, energy > self.epsilon)
        share = (energy / self.epsilon).clamp(max=1)
        return torch.lerp(usual, inverse_norm, share) * (lengths >= 2)


@dataclass(frozen=True)
class StandardizedFilters:
    """The active weights of a layer, centred per filter, with what scales them to θ̂.

    Attributes:
        centered: [n_l].
        lengths: [filters], n_i.
        mean: [filters], μ_i.
        inverse_norm: [filters], 1 / sqrt(n_i σ_i² + ε), or 0 for a dead filter.
        scale: [filters], what takes a centred weight to θ̂; 0 for a dead filter.
    """

    centered: Tensor
    lengths: Tensor
    mean: Tensor
    inverse_norm: Tensor
    scale: Tensor

    @property
    def statistics(self) -> Tensor:
        """What a second standardisation needs not compute again: [2, filters]."""
        return torch.stack([self.mean, self.inverse_norm])

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
        return self.centered * self._spread(self.scale)

    def backward(self, gradient: Tensor) -> Tensor:
        """The gradient for θ, given the one for θ̂; it flows through μ and σ too."""
        along = _sum(self.centered * gradient, self.lengths) * self.inverse_norm.square()
        tangent = gradient - self._spread(_mean(gradient, self.lengths))
        tangent -= self.centered * self._spread(along)
        return tangent * self._spread(self.scale)

    def _spread(self, per_filter: Tensor) -> Tensor:
        return _spread(per_filter, self.lengths, self.centered)


def _sum(values: Tensor, lengths: Tensor) -> Tensor:
    return torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True)  # it would check the lengths


def _mean(values: Tensor, lengths: Tensor) -> Tensor:
    return _sum(values, lengths) / lengths.clamp(min=1)


def _mean_where(per_filter: Tensor, chosen: Tensor) -> Tensor:
    """The mean over the chosen filters, 0 if there is none."""
    return (per_filter * chosen).sum() / chosen.sum().clamp(min=1)


def _spread(per_filter: Tensor, lengths: Tensor, like: Tensor) -> Tensor:
    return per_filter.repeat_interleave(lengths, output_size=like.numel())
