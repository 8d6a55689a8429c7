"""Server-side drop-and-grow from the devices' largest gradients (Algorithm 1; FedTiny, FedMef)."""

from collections.abc import Sequence

import numpy as np

from fedmef.errors import RejectedError
from fedmef.methods.base import (
    Adjustment,
    Rules,
    adjustable_layers,
    expect_extras,
    sample_weights,
    sparse_bytes,
)
from fedmef.sparsity.adjustment import adjustment_count, drop_and_grow, weakest
from fedmef.sparsity.arrays import Bits, Integers
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.model import Model
from fedmef.sparsity.operations import Layer
from fedmef.wire.job import Job
from fedmef.wire.update import Update


def adjustment_counts(model: Model, rate: float) -> dict[str, int]:
    """`ξ_l` of every layer that has something to exchange."""
    counts = {
        name: adjustment_count(rate, model.values(name).size, layer.size)
        for name, layer in adjustable_layers(model.network).items()
    }
    return {name: count for name, count in counts.items() if count > 0}


def average_scores(scores: Sequence[GrowthScores], weights: Sequence[float]) -> GrowthScores:
    """The weighted average of the devices' sparse gradients; what a device did not send counts 0."""
    sent = np.concatenate([score.positions for score in scores])
    positions, index = np.unique(sent, return_inverse=True)
    shares = [
        weight * score.gradients.astype(np.float64) for score, weight in zip(scores, weights, strict=True)
    ]
    return GrowthScores(positions, np.bincount(index, np.concatenate(shares), minlength=positions.size))


def drop_and_grow_from_averages(
    model: Model, updates: Sequence[Update], job: Job, rules: Rules
) -> Adjustment:
    """In every layer, drop the `ξ_l` smallest weights and grow the `ξ_l` largest averaged gradients.

    Under NSConv a weight's magnitude is its distance from its filter's mean, which is all that NSConv sees.
    A filter that was dead begins with one step down the gradient: with equal weights it would stay at 0.
    """
    votes = rules.one_vote_each
    weights = [1.0 / len(updates)] * len(updates) if votes else sample_weights(updates)
    exchanged, dropped_magnitude = 0, 0.0
    for name, wanted in adjustment_counts(model, job.adjustment_rate).items():
        layer = model.network.sparse_layers[name]
        sent = [_checked_scores(update, name, model) for update in updates]
        scores = average_scores([_vote(score) for score in sent] if votes else sent, weights)
        model.center_filters(name)
        positions, values = model.positions(name), model.values(name)
        dropped = weakest(positions, values, layer, wanted)[: scores.positions.size]
        initial = (-job.learning_rate * scores.gradients).astype(values.dtype)
        if rules.grow_init == "zero":
            initial[~_is_dead(layer, positions)[scores.positions // layer.filter_size]] = 0
        exchanged += dropped.size
        dropped_magnitude += float(np.abs(values[dropped]).sum())
        model.assign(
            name, *drop_and_grow(positions, values, dropped, scores.positions, scores.gradients, initial)
        )
        model.center_filters(name)  # now, because devices mark by magnitude what goes next time
    return Adjustment(exchanged, dropped_magnitude / exchanged if exchanged else None)


def _vote(scores: GrowthScores) -> GrowthScores:
    """The same gradients with norm 1."""
    norm = max(float(np.linalg.norm(scores.gradients)), 1e-12)
    return GrowthScores(scores.positions, scores.gradients / norm)


def _is_dead(layer: Layer, positions: Integers) -> Bits:
    """Of every filter, whether it needs two active weights to give anything but 0, and has fewer."""
    lengths = np.bincount(positions // layer.filter_size, minlength=layer.filters)
    return (lengths < 2) & (layer.normalization is not None)


def check_growth(model: Model, update: Update, rate: float) -> None:
    """Raise `RejectedError` unless an update has scores of the layers that exchange weights, and no more."""
    counts = adjustment_counts(model, rate)
    expect_extras(update, growth=counts)
    for name, wanted in counts.items():
        sent = _checked_scores(update, name, model).positions.size
        if sent > wanted:
            raise RejectedError(f"device {update.device} sent {sent} growth scores of {name}, not {wanted}")


def growth_bytes(model: Model, rate: float) -> int:
    """What the scores of one device take at most."""
    layers = model.network.sparse_layers
    counts = adjustment_counts(model, rate)
    return sum(sparse_bytes(layers[name], count) for name, count in counts.items())


def _checked_scores(update: Update, name: str, model: Model) -> GrowthScores:
    """A device's scores of a layer; wrong ones would silently grow the wrong weights."""
    who, layer = f"device {update.device}", model.network.sparse_layers[name]
    scores = update.extras.growth.get(name)
    if scores is None or scores.positions.shape != scores.gradients.shape or scores.positions.ndim != 1:
        raise RejectedError(f"{who} sent no growth scores of {name}")
    positions = scores.positions
    if scores.gradients.dtype != np.dtype(layer.dtype) or not np.isfinite(scores.gradients).all():
        raise RejectedError(f"{who} sent gradients of {name} that are not finite: its training diverged")
    if (np.diff(positions) <= 0).any() or ((positions < 0) | (positions >= layer.size)).any():
        raise RejectedError(f"{who} sent positions of {name} that are not ascending or out of range")
    if np.isin(positions, model.positions(name)).any():
        raise RejectedError(f"{who} sent a growth score of {name} for a weight that is active")
    return scores
