"""Server-side drop-and-grow from the devices' largest gradients (Algorithm 1; FedTiny, FedMef)."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedmef.methods.base import Adjustment, Update, sample_weights
from fedmef.nn import GrowthScores, SparseConv2d, sparse_layers
from fedmef.sparsity import adjustment_count, drop_and_grow, smallest_magnitudes

GrowInit = Literal["zero", "mean"]


def adjustment_counts(model: nn.Module, rate: float) -> dict[str, int]:
    """`ξ_l` of every layer that has something to exchange."""
    counts = {
        name: adjustment_count(rate, layer.active_count, layer.geometry.size)
        for name, layer in sparse_layers(model).items()
    }
    return {name: count for name, count in counts.items() if count > 0}


def average_scores(scores: Sequence[GrowthScores], weights: Sequence[float]) -> GrowthScores:
    """The weighted average of the devices' sparse gradients; what a device did not send counts 0."""
    positions, index = torch.unique(torch.cat([score.positions for score in scores]), return_inverse=True)
    averages = torch.zeros(positions.numel(), dtype=torch.float64)
    shares = [weight * score.gradients.double() for score, weight in zip(scores, weights, strict=True)]
    return GrowthScores(positions, averages.index_add_(0, index, torch.cat(shares)))


def drop_and_grow_from_averages(
    model: nn.Module, updates: Sequence[Update], rate: float, grow_init: GrowInit
) -> Adjustment:
    """In every layer, drop the `ξ_l` smallest weights and grow the `ξ_l` largest averaged gradients."""
    layers = sparse_layers(model)
    weights = sample_weights(updates)
    exchanged, dropped = 0, 0.0
    for name, wanted in adjustment_counts(model, rate).items():
        scores = average_scores([update.extras.growth[name] for update in updates], weights)
        layer, count = layers[name], min(wanted, scores.positions.numel())
        values = layer.values.detach()
        dropped += float(values[smallest_magnitudes(values, count)].abs().sum())
        exchanged += count
        candidates, gradients = scores.positions.to(values.device), scores.gradients.to(values.device)
        initial = _initial_values(layer, candidates, grow_init)
        layer.assign(*drop_and_grow(layer.active_positions(), values, candidates, gradients, count, initial))
    return Adjustment(exchanged, dropped / exchanged if exchanged else math.nan)


def _initial_values(layer: SparseConv2d, positions: Tensor, grow_init: GrowInit) -> Tensor:
    if grow_init == "zero":
        return layer.values.new_zeros(positions.numel())
    return layer.filter_means()[positions // layer.geometry.filter_size]
