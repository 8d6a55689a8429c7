"""FedDST (Bibikar et al. 2022): each device adjusts its own mask, and the server merges masks and weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedmef.device.training import LocalTraining
from fedmef.methods.base import (
    Adjustment,
    Extras,
    Plan,
    RejectedError,
    Update,
    average_floats,
    expect_extras,
    sample_weights,
)
from fedmef.methods.fedtiny import FedTiny
from fedmef.methods.growth import adjustment_counts
from fedmef.nn import SparseConv2d, sparse_layers
from fedmef.sparsity import active_positions, drop_and_grow


class FedDST(FedTiny):
    """A random sparse network with BatchNorm whose masks devices adjust halfway through their training."""

    devices_adjust = True

    def train(self, local: LocalTraining, plan: Plan) -> Extras:
        """In adjustment rounds: train one half, drop and grow, train the other half, send the mask too."""
        epochs = self.experiment.local_epochs
        if not plan.adjusts:
            local.fit(epochs)
            return Extras()
        local.fit(epochs / 2)
        self._adjust_locally(local, plan)
        local.fit(epochs / 2)
        layers = sparse_layers(local.model)
        return Extras(masks={name: layer.mask for name, layer in layers.items()})

    def check(self, model: nn.Module, update: Update, plan: Plan) -> None:
        """In adjustment rounds every update has its own masks, with as many ones as the server's."""
        layers = sparse_layers(model) if plan.adjusts else {}
        expect_extras(update, masks=layers)
        for name, layer in layers.items():
            _positions(update, name, layer)

    def aggregate(self, model: nn.Module, updates: Sequence[Update]) -> None:
        """The average; weights whose masks the devices have changed wait for `adjust`."""
        layers = sparse_layers(model) if updates[0].extras.masks else {}
        average_floats(model, updates, sample_weights(updates), without={f"{name}.values" for name in layers})

    def adjust(self, model: nn.Module, updates: Sequence[Update], plan: Plan) -> Adjustment:
        """Per position, the average over the devices that hold it; of their union the `n_l` largest stay."""
        weights, exchanged = sample_weights(updates), 0
        for name, layer in sparse_layers(model).items():
            held = [(_positions(update, name, layer), update.weights[f"{name}.values"]) for update in updates]
            union, averages = average_over_holders(held, weights, layer.geometry.size)
            kept = _largest(averages, layer.active_count)
            before = layer.active_positions().to(union.device)
            exchanged += int(torch.isin(union[kept], before, invert=True).sum())
            layer.assign(union[kept], averages[kept])
        return Adjustment(exchanged, dropped_magnitude=None)  # each device dropped weights of its own

    def _adjust_locally(self, local: LocalTraining, plan: Plan) -> None:
        counts = adjustment_counts(local.model, plan.adjustment_rate)
        layers = sparse_layers(local.model)
        for name, scores in local.growth_scores(counts).items():
            layer = layers[name]
            values = layer.values.detach()
            initial = values.new_zeros(scores.positions.numel())
            layer.assign(
                *drop_and_grow(
                    layer.active_positions(),
                    values,
                    scores.positions,
                    scores.gradients,
                    counts[name],
                    initial,
                )
            )


def average_over_holders(
    held: Sequence[tuple[Tensor, Tensor]], weights: Sequence[float], size: int
) -> tuple[Tensor, Tensor]:
    """The union of the devices' positions, and at each the weighted average over the devices that hold it."""
    total = torch.zeros(size, dtype=torch.float64)
    share = torch.zeros(size, dtype=torch.float64)
    for (positions, values), weight in zip(held, weights, strict=True):
        total[positions] += weight * values.double()
        share[positions] += weight
    union = share.nonzero().squeeze(1)
    return union, (total[union] / share[union]).to(held[0][1].dtype)


def _positions(update: Update, name: str, layer: SparseConv2d) -> Tensor:
    mask = update.extras.masks.get(name)
    if mask is None:
        raise RejectedError(f"device {update.device} sent no mask of {name}")
    positions = active_positions(mask, layer.geometry.size)
    if positions.numel() != update.weights[f"{name}.values"].numel():
        raise RejectedError(f"device {update.device} sent a mask of {name} that does not fit its values")
    return positions


def _largest(values: Tensor, count: int) -> Tensor:
    """Positions of the `count` largest magnitudes, ascending, with zeros if there are not enough others."""
    return torch.sort(values.abs(), descending=True, stable=True).indices[:count].sort().values
