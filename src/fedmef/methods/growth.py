"""Server-side drop-and-grow from the devices' largest gradients (Algorithm 1; FedTiny, FedMef)."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedmef.methods.base import Adjustment, RejectedError, Update, expect_extras, sample_weights
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
    model: nn.Module, updates: Sequence[Update], rate: float, grow_init: GrowInit, *, votes: bool = False
) -> Adjustment:
    """In every layer, drop the `ξ_l` smallest weights and grow the `ξ_l` largest averaged gradients.

    Under NSConv a weight's magnitude is its distance from its filter's mean, which is all that NSConv sees.
    With `votes`, every device's gradients of a layer count alike, whatever its samples or their size.
    """
    layers = sparse_layers(model)
    weights = [1.0 / len(updates)] * len(updates) if votes else sample_weights(updates)
    exchanged, dropped_magnitude = 0, 0.0
    for name, wanted in adjustment_counts(model, rate).items():
        layer = layers[name]
        sent = [_checked_scores(update, name, layer) for update in updates]
        scores = average_scores([_vote(score) for score in sent] if votes else sent, weights)
        candidates, gradients = scores.positions.to(layer.mask.device), scores.gradients.to(layer.mask.device)
        layer.center_filters()
        positions, values = layer.active_positions(), layer.values.detach()
        dropped = smallest_magnitudes(values, min(wanted, candidates.numel()))
        initial = values.new_zeros(candidates.numel())
        if grow_init == "mean":
            kept = torch.ones_like(values, dtype=torch.bool).index_fill_(0, dropped, False)
            initial = _filter_means(positions[kept], values[kept], layer)[
                candidates // layer.geometry.filter_size
            ]
        exchanged += dropped.numel()
        dropped_magnitude += float(values[dropped].abs().sum())
        layer.assign(*drop_and_grow(positions, values, candidates, gradients, wanted, initial))
        layer.center_filters()  # now, because devices mark by magnitude what goes next time
    return Adjustment(exchanged, dropped_magnitude / exchanged if exchanged else None)


def _vote(scores: GrowthScores) -> GrowthScores:
    """The same gradients with norm 1."""
    return GrowthScores(scores.positions, torch.nn.functional.normalize(scores.gradients, dim=0))


def _filter_means(positions: Tensor, values: Tensor, layer: SparseConv2d) -> Tensor:
    """The mean weight of every filter, 0 for a filter without any."""
    filters = positions // layer.geometry.filter_size
    lengths = torch.bincount(filters, minlength=layer.geometry.shape[0])
    return torch.segment_reduce(values, "sum", lengths=lengths) / lengths.clamp(min=1)


def check_growth(model: nn.Module, update: Update, rate: float) -> None:
    """Raise `RejectedError` unless an update has scores of the layers that exchange weights, and no more."""
    layers, counts = sparse_layers(model), adjustment_counts(model, rate)
    expect_extras(update, growth=counts)
    for name, wanted in counts.items():
        sent = _checked_scores(update, name, layers[name]).positions.numel()
        if sent > wanted:
            raise RejectedError(f"device {update.device} sent {sent} growth scores of {name}, not {wanted}")


def _checked_scores(update: Update, name: str, layer: SparseConv2d) -> GrowthScores:
    """A device's scores of a layer; wrong ones would silently grow the wrong weights."""
    who = f"device {update.device}"
    scores = update.extras.growth.get(name)
    if scores is None or scores.positions.shape != scores.gradients.shape or scores.positions.ndim != 1:
        raise RejectedError(f"{who} sent no growth scores of {name}")
    positions = scores.positions
    if scores.gradients.dtype != layer.values.dtype or not torch.isfinite(scores.gradients).all():
        raise RejectedError(f"{who} sent gradients of {name} that are not finite: its training diverged")
    if (positions.diff() <= 0).any() or ((positions < 0) | (positions >= layer.geometry.size)).any():
        raise RejectedError(f"{who} sent positions of {name} that are not ascending or out of range")
    if torch.isin(positions, layer.active_positions().to(positions.device)).any():
        raise RejectedError(f"{who} sent a growth score of {name} for a weight that is active")
    return scores
