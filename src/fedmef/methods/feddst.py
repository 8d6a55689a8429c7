"""FedDST (Bibikar et al. 2022, https://arxiv.org/abs/2112.09824): each device adjusts its own mask.

The server merges masks and weights.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedmef.errors import RejectedError
from fedmef.methods.base import (
    Adjustment,
    Rules,
    average_floats,
    expect_extras,
    mask_bytes,
    sample_weights,
)
from fedmef.methods.fedtiny import FedTiny
from fedmef.methods.growth import adjustment_counts
from fedmef.sparsity.adjustment import drop_and_grow, weakest
from fedmef.sparsity.arrays import Array, Integers
from fedmef.sparsity.masks import active_positions
from fedmef.sparsity.model import Model
from fedmef.wire.job import Job
from fedmef.wire.update import Extras, Update

if TYPE_CHECKING:
    from fedmef.device.training import LocalTraining


class FedDST(FedTiny):
    """A random sparse network with BatchNorm whose masks devices adjust halfway through their training."""

    devices_adjust = True
    own_merge = True

    def train(self, local: "LocalTraining", job: Job) -> Extras:
        """In adjustment rounds: train one half, drop and grow, train the other half, send the mask too."""
        if not job.adjusts:
            local.fit(job.local_epochs)
            return Extras()
        local.fit(job.local_epochs / 2)
        _adjust_locally(local, job)
        local.fit(job.local_epochs / 2)
        return Extras(masks=local.model.masks())

    def check(self, model: Model, update: Update, job: Job) -> None:
        """In adjustment rounds every update has its own masks, with as many ones as the server's."""
        layers = model.network.sparse_layers if job.adjusts else {}
        expect_extras(update, masks=layers)
        for name in layers:
            _positions(update, name, model)

    def extra_bytes(self, model: Model, job: Job) -> int:
        """The masks, in adjustment rounds."""
        layers = model.network.sparse_layers if job.adjusts else {}
        return sum(mask_bytes(layer, model.values(name).size) for name, layer in layers.items())

    def aggregate(self, model: Model, updates: Sequence[Update], rules: Rules) -> None:
        """The average; weights whose masks the devices have changed wait for `adjust`."""
        layers = model.network.sparse_layers if updates[0].extras.masks else {}
        average_floats(model, updates, rules.combine, without={f"{name}.values" for name in layers})

    def adjust(self, model: Model, updates: Sequence[Update], job: Job, rules: Rules) -> Adjustment:
        """Per position, the average over the devices that hold it; of their union the `n_l` largest stay."""
        weights, exchanged = sample_weights(updates), 0
        for name, layer in model.network.sparse_layers.items():
            held = [(_positions(update, name, model), update.weights[f"{name}.values"]) for update in updates]
            union, averages = average_over_holders(held, weights, layer.size)
            kept = _largest(averages, model.values(name).size)
            exchanged += int(np.isin(union[kept], model.positions(name), invert=True).sum())
            model.assign(name, union[kept], averages[kept])
        return Adjustment(exchanged, dropped_magnitude=None)  # each device dropped weights of its own


def _adjust_locally(local: "LocalTraining", job: Job) -> None:
    model = Model(local.model.network, dict(local.model.state))
    counts = adjustment_counts(model, job.adjustment_rate)
    for name, scores in local.growth_scores(counts).items():
        positions, values, layer = (
            model.positions(name),
            model.values(name),
            model.network.sparse_layers[name],
        )
        dropped = weakest(positions, values, layer, counts[name])
        initial = np.zeros_like(scores.gradients)
        model.assign(
            name, *drop_and_grow(positions, values, dropped, scores.positions, scores.gradients, initial)
        )
    local.replace(model)


def average_over_holders(
    held: Sequence[tuple[Integers, Array]], weights: Sequence[float], size: int
) -> tuple[Integers, Array]:
    """The union of the devices' positions, and at each the weighted average over the devices that hold it."""
    total, share = np.zeros(size), np.zeros(size)
    for (positions, values), weight in zip(held, weights, strict=True):
        total[positions] += weight * values.astype(np.float64)
        share[positions] += weight
    union = np.flatnonzero(share)
    return union, (total[union] / share[union]).astype(held[0][1].dtype)


def _positions(update: Update, name: str, model: Model) -> Integers:
    mask = update.extras.masks.get(name)
    if mask is None:
        raise RejectedError(f"device {update.device} sent no mask of {name}")
    positions = active_positions(mask, model.network.sparse_layers[name].size)
    if positions.size != update.weights[f"{name}.values"].size:
        raise RejectedError(f"device {update.device} sent a mask of {name} that does not fit its values")
    return positions


def _largest(values: Array, count: int) -> Integers:
    """Positions of the `count` largest magnitudes, ascending, with zeros if there are not enough others."""
    return np.sort(np.argsort(-np.abs(values), kind="stable")[:count])
