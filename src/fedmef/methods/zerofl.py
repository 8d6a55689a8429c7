"""ZeroFL (Qiu et al. 2022): SWAT on the devices, and only the largest weights go up.

SWAT convolves with the weights of largest magnitude only, and keeps only the largest activations for the
backward pass; but weights and their gradients are dense, and take the dense network's memory. FedMef sets
ZeroFL aside for that, and here it shows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedmef.local_training import LocalTraining
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
from fedmef.sparsity import active_count, largest_magnitudes


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
        tensors = {}
        for name, layer in swat_layers(local.model).items():
            values = layer.values.detach()
            sent = largest_magnitudes(values, self._sent_count(layer))
            tensors[f"{name}.positions"] = sent.to(torch.int32)
            tensors[f"{name}.sent"] = values[sent]
        return Extras(tensors=tensors)

    def withheld(self, model: nn.Module) -> frozenset[str]:
        """The weights that go up masked."""
        return frozenset(f"{name}.values" for name in swat_layers(model))

    def check(self, model: nn.Module, update: Update, plan: Plan) -> None:
        """Every update has the largest weights, and says which they are."""
        layers = swat_layers(model)
        expect_extras(update, tensors=[f"{name}.{part}" for name in layers for part in ("positions", "sent")])
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
    positions = update.extras.tensors.get(f"{name}.positions")
    values = update.extras.tensors.get(f"{name}.sent")
    if positions is None or values is None or positions.shape != values.shape or positions.ndim != 1:
        raise RejectedError(f"device {update.device} sent no weights of {name}")
    whole = positions.dtype == torch.int32
    positions = positions.long()
    if (
        not whole
        or (positions.diff() <= 0).any()
        or ((positions < 0) | (positions >= layer.geometry.size)).any()
    ):
        raise RejectedError(
            f"device {update.device} sent positions of {name} that are not ascending or in range"
        )
    if values.dtype != layer.values.dtype or not torch.isfinite(values).all():
        raise RejectedError(f"device {update.device} sent weights of {name} that are not finite")
    return positions, values
