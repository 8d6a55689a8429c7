"""ZeroFL (Qiu et al. 2022): SWAT on the devices, and only the largest weights go up.

SWAT convolves with the weights of largest magnitude only, and keeps only the largest activations for the
backward pass; but weights and their gradients are dense, and take the dense network's memory. FedMef sets
ZeroFL aside for that, and here it shows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedmef.device.training import LocalTraining
from fedmef.methods.base import (
    Extras,
    Method,
    Plan,
    RejectedError,
    Update,
    average_floats,
    expect_extras,
    sample_weights,
)
from fedmef.methods.feddst import average_over_holders
from fedmef.methods.sparse_network import sparse_network
from fedmef.nn import SparseConv2d, dense_by_default, sparse_layers
from fedmef.nn.convolution import sparse_conv2d
from fedmef.sparsity import active_count, active_positions, largest_magnitudes, mask_from_positions


class SwatConv2d(SparseConv2d):
    """A dense layer that convolves with its largest weights; the gradient reaches all of them."""

    sparsity: float

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, D102
        weights = self.values.detach()
        largest = largest_magnitudes(weights, active_count(weights.numel(), self.sparsity))
        sparse = torch.zeros_like(weights).index_copy_(0, largest, weights[largest])
        straight_through = self.values + (sparse - weights)  # sparse in value, dense in gradient
        return sparse_conv2d(
            input, straight_through, self.mask, self.geometry, bias=self.bias, cache=self.cache
        )


class ZeroFL(Method):
    """SWAT with BatchNorm; the server averages every position over the devices that sent it.

    Attributes:
        extra: share of weights that goes up beyond the `1 − sparsity` that convolve (the paper's mask ratio).
    """

    extra = 0.1
    prunes_activations = True

    def prepare(self, network: nn.Module) -> nn.Module:
        """Dense weights everywhere, pruned caches, and SWAT where other methods are sparse."""
        dense = set(dense_by_default(network))
        model = sparse_network(network, self.experiment, sparsity=0.0, prune_activations=True)
        for name, layer in sparse_layers(model).items():
            if name not in dense and type(layer) is SparseConv2d:
                layer.__class__ = SwatConv2d
                layer.sparsity = self.experiment.sparsity  # type: ignore[assignment]
        return model

    def train(self, local: LocalTraining, plan: Plan) -> Extras:
        """Ordinary training; the largest weights go up with their positions."""
        local.fit(self.experiment.local_epochs)
        masks, tensors = {}, {}
        for name, layer in swat_layers(local.model).items():
            values = layer.values.detach()
            sent = largest_magnitudes(values, self._sent_count(layer))
            masks[name] = mask_from_positions(sent, layer.geometry.size)
            tensors[f"{name}.sent"] = values[sent]
        return Extras(tensors=tensors, masks=masks)

    def withheld(self, model: nn.Module) -> frozenset[str]:
        """The weights that go up masked."""
        return frozenset(f"{name}.values" for name in swat_layers(model))

    def check(self, model: nn.Module, update: Update, plan: Plan) -> None:
        """Every update has the largest weights, and says which they are."""
        layers = swat_layers(model)
        expect_extras(update, tensors=[f"{name}.sent" for name in layers], masks=layers)
        for name, layer in layers.items():
            positions, _ = _received(update, name, layer)
            if positions.numel() > self._sent_count(layer):
                raise RejectedError(f"device {update.device} sent too many weights of {name}")

    def aggregate(self, model: nn.Module, updates: Sequence[Update]) -> None:
        """Masked weights: the average over the devices that sent a position; unsent ones stay as they are."""
        weights = sample_weights(updates)
        average_floats(model, updates, weights, without=self.withheld(model))
        for name, layer in swat_layers(model).items():
            held = [_received(update, name, layer) for update in updates]
            union, averages = average_over_holders(held, weights, layer.geometry.size)
            device = layer.values.device
            layer.values.data.index_copy_(0, union.to(device), averages.to(device))

    def _sent_count(self, layer: SparseConv2d) -> int:
        return active_count(layer.geometry.size, max(0.0, self.experiment.sparsity - self.extra))


def swat_layers(model: nn.Module) -> dict[str, SwatConv2d]:
    """The layers that convolve with their largest weights only."""
    return {name: module for name, module in model.named_modules() if isinstance(module, SwatConv2d)}


def _received(update: Update, name: str, layer: SparseConv2d) -> tuple[Tensor, Tensor]:
    mask = update.extras.masks.get(name)
    values = update.extras.tensors.get(f"{name}.sent")
    if mask is None or values is None:
        raise RejectedError(f"device {update.device} sent no weights of {name}")
    positions = active_positions(mask, layer.geometry.size)
    if positions.shape != values.shape:
        raise RejectedError(f"device {update.device} sent a mask of {name} that does not fit its values")
    if values.dtype != layer.values.dtype or not torch.isfinite(values).all():
        raise RejectedError(f"device {update.device} sent weights of {name} that are not finite")
    return positions, values
