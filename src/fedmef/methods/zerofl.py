"""ZeroFL (Qiu et al. 2022, https://arxiv.org/abs/2208.02507): SWAT on the devices, large weights go up.

SWAT convolves with the weights of largest magnitude only, and keeps only the largest activations for the
backward pass; but weights and their gradients are dense, and take the dense network's memory. FedMef sets
ZeroFL aside for that, and here it shows.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedmef.errors import RejectedError
from fedmef.methods.base import (
    Method,
    Recipe,
    Rules,
    average_floats,
    expect_extras,
    sample_weights,
    sparse_bytes,
)
from fedmef.methods.feddst import average_over_holders
from fedmef.sparsity.arrays import Array, Integers
from fedmef.sparsity.masks import active_count, active_positions, mask_from_positions
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Network
from fedmef.sparsity.operations import Layer
from fedmef.sparsity.topk import largest_magnitudes
from fedmef.wire.job import Job
from fedmef.wire.update import Extras, Update

if TYPE_CHECKING:
    from fedmef.device.training import LocalTraining


class ZeroFL(Method):
    """SWAT with BatchNorm; the server averages every position over the devices that sent it.

    Attributes:
        extra: share of weights that goes up beyond the `1 − sparsity` that convolve (the paper's mask ratio).
    """

    recipe = Recipe(weights="swat", prune_activations=True)
    own_merge = True
    needs_torch = True
    extra = 0.1

    def train(self, local: "LocalTraining", job: Job) -> Extras:
        """Ordinary training; the largest weights go up with their positions."""
        local.fit(job.local_epochs)
        model = local.model
        masks, arrays = {}, {}
        for name, layer in swat_layers(model.network).items():
            values = model.values(name)
            sent = largest_magnitudes(values, self._sent_count(layer))
            masks[name] = mask_from_positions(sent, layer.size)
            arrays[f"{name}.sent"] = values[sent]
        return Extras(arrays=arrays, masks=masks)

    def withheld(self, network: Network) -> frozenset[str]:
        """The weights that go up masked."""
        return frozenset(f"{name}.values" for name in swat_layers(network))

    def check(self, model: Model, update: Update, job: Job) -> None:
        """Every update has the largest weights, and says which they are."""
        layers = swat_layers(model.network)
        expect_extras(update, arrays=[f"{name}.sent" for name in layers], masks=layers)
        for name, layer in layers.items():
            positions, _ = _received(update, name, layer)
            if positions.size > self._sent_count(layer):
                raise RejectedError(f"device {update.device} sent too many weights of {name}")

    def extra_bytes(self, model: Model, job: Job) -> int:
        """The largest weights, and which they are."""
        layers = swat_layers(model.network).values()
        return sum(sparse_bytes(layer, self._sent_count(layer)) for layer in layers)

    def aggregate(self, model: Model, updates: Sequence[Update], rules: Rules) -> None:
        """Masked weights: the average over the devices that sent a position; unsent ones stay as they are."""
        average_floats(model, updates, rules.combine, without=self.withheld(model.network))
        weights = sample_weights(updates)
        for name, layer in swat_layers(model.network).items():
            held = [_received(update, name, layer) for update in updates]
            union, averages = average_over_holders(held, weights, layer.size)
            values = model.values(name).copy()
            values[union] = averages
            model.state[f"{name}.values"] = values

    def _sent_count(self, layer: Layer) -> int:
        return active_count(layer.size, max(0.0, layer.swat - self.extra))


def swat_layers(network: Network) -> dict[str, Layer]:
    """The layers that convolve with their largest weights only."""
    return {name: layer for name, layer in network.sparse_layers.items() if layer.swat}


def _received(update: Update, name: str, layer: Layer) -> tuple[Integers, Array]:
    mask, values = update.extras.masks.get(name), update.extras.arrays.get(f"{name}.sent")
    if mask is None or values is None:
        raise RejectedError(f"device {update.device} sent no weights of {name}")
    positions = active_positions(mask, layer.size)
    if positions.shape != values.shape:
        raise RejectedError(f"device {update.device} sent a mask of {name} that does not fit its values")
    if values.dtype != np.dtype(layer.dtype) or not np.isfinite(values).all():
        raise RejectedError(f"device {update.device} sent weights of {name} that are not finite")
    return positions, values
