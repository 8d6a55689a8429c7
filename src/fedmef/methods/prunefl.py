"""PruneFL (Jiang et al. 2022): the server keeps the weights of largest squared gradient per unit of time.

In adjustment rounds a device adds up the squared gradients of *all* positions, so it holds a dense tensor for
every layer; FedMef sets PruneFL aside for that memory. An ordinary step holds none of them.

Weights move freely between layers, as in the paper. Deviations, so that methods are compared at one size and
from one start: the total number of active weights stays what the sparsity says, where the paper's grows and
shrinks; the first masks are random, where the paper prunes at one device before the rounds begin; and `t`
counts multiply-adds, where the paper times a device.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from fedmef.device.training import LocalTraining
from fedmef.methods.base import (
    Adjustment,
    Extras,
    Plan,
    RejectedError,
    Update,
    expect_extras,
    sample_weights,
)
from fedmef.methods.fedtiny import FedTiny
from fedmef.nn import SparseConv2d, sparse_layers


class PruneFL(FedTiny):
    """A random sparse network with BatchNorm; adjustment rounds choose all its positions anew."""

    fixed_layer_counts = False

    def train(self, local: LocalTraining, plan: Plan) -> Extras:
        """Ordinary training; in adjustment rounds the importance of every position is added up meanwhile."""
        epochs = self.experiment.local_epochs
        if not plan.adjusts:
            local.fit(epochs)
            return Extras()
        layers = prunable_layers(local.model)
        with squared_gradients(layers) as importance, layer_times(layers) as times:
            local.fit(epochs)
        # Devices are weighted by their samples; a sum over steps would count samples twice.
        steps = local.steps(epochs)
        tensors = {f"{name}.importance": value / steps for name, value in importance.items()}
        tensors |= {f"{name}.time": torch.tensor(float(value)) for name, value in times.items()}
        return Extras(tensors=tensors)

    def check(self, model: nn.Module, update: Update, plan: Plan) -> None:
        """In adjustment rounds every update has the importances."""
        layers = prunable_layers(model) if plan.adjusts else {}
        expect_extras(
            update, tensors=[f"{name}.{part}" for name in layers for part in ("importance", "time")]
        )
        for name, layer in layers.items():
            _received(update, name, layer)

    def adjust(self, model: nn.Module, updates: Sequence[Update], plan: Plan) -> Adjustment:
        """Of all prunable layers together, keep the positions of largest `g² / t`."""
        layers, weights = prunable_layers(model), sample_weights(updates)
        ratios = {}
        for name, layer in layers.items():
            sent = [_received(update, name, layer) for update in updates]
            importance = self.combine([importance for importance, _ in sent], weights)
            ratios[name] = importance / median(time for _, time in sent)  # all send the same, but liars
        chosen = choose_positions(ratios, sum(layer.active_count for layer in layers.values()))
        lost = [_reassign(layers[name], positions) for name, positions in chosen.items()]
        dropped = torch.cat(lost)
        return Adjustment(dropped.numel(), float(dropped.mean()) if dropped.numel() else None)


def prunable_layers(model: nn.Module) -> dict[str, SparseConv2d]:
    """The layers between which weights move; what is dense by choice is a plain layer in this network."""
    return sparse_layers(model)


def choose_positions(ratios: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """The `count` positions of largest ratio over all layers, ascending; every layer keeps at least one."""
    first = {name: int(ratio.argmax()) for name, ratio in ratios.items()}
    lifted = [ratio.double().clone() for ratio in ratios.values()]
    for ratio, position in zip(lifted, first.values(), strict=True):
        ratio[position] = torch.inf
    best = torch.sort(torch.cat(lifted), descending=True, stable=True).indices[:count].sort().values
    chosen, start = {}, 0
    for name, ratio in ratios.items():
        inside = best[(best >= start) & (best < start + ratio.numel())]
        chosen[name] = inside - start
        start += ratio.numel()
    return chosen


@contextmanager
def squared_gradients(layers: dict[str, SparseConv2d]) -> Iterator[dict[str, Tensor]]:
    """Add up the squared gradient of every position, active or pruned, over the block's backward passes."""
    sums = {
        name: torch.zeros(layer.geometry.size, device=layer.mask.device) for name, layer in layers.items()
    }

    def add_pruned(name: str, gradient: Tensor) -> None:
        sums[name] += gradient.square()

    def add_active(name: str, positions: Tensor, values: Tensor) -> None:
        assert values.grad is not None
        sums[name][positions] += values.grad.square()

    with ExitStack() as undo:
        for name, layer in layers.items():
            layer.observe_growth = partial(add_pruned, name)
            undo.callback(setattr, layer, "observe_growth", None)
            hook = partial(add_active, name, layer.active_positions())
            handle = layer.values.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            undo.callback(handle.remove)
        yield sums


@contextmanager
def layer_times(layers: dict[str, SparseConv2d]) -> Iterator[dict[str, int]]:
    """`t`: what one weight of a layer costs in a forward pass: a multiply-add for each output pixel."""
    times: dict[str, int] = {}

    def note(name: str, module: nn.Module, inputs: object, output: Tensor) -> None:
        times[name] = output[0, 0].numel()

    with ExitStack() as undo:
        for name, layer in layers.items():
            undo.callback(layer.register_forward_hook(partial(note, name)).remove)
        yield times


def _received(update: Update, name: str, layer: SparseConv2d) -> tuple[Tensor, float]:
    importance = update.extras.tensors.get(f"{name}.importance")
    time = update.extras.tensors.get(f"{name}.time")
    if importance is None or time is None or importance.shape != (layer.geometry.size,) or time.shape:
        raise RejectedError(f"device {update.device} sent no importance of {name}")
    kinds = (importance.dtype, time.dtype) == (torch.float32, torch.float32)
    if (
        not kinds
        or not torch.isfinite(importance).all()
        or (importance < 0).any()
        or not 1 <= float(time) < 1e9
    ):
        raise RejectedError(f"device {update.device} sent importances of {name} that make no sense")
    return importance, float(time)


def _reassign(layer: SparseConv2d, positions: Tensor) -> Tensor:
    """Make these positions active, new ones with 0; returns the magnitudes that were dropped."""
    active, values = layer.active_positions().cpu(), layer.values.detach().cpu()
    dense = torch.zeros(layer.geometry.size, dtype=values.dtype).index_copy_(0, active, values)
    lost = values[torch.isin(active, positions, invert=True)].abs()
    layer.assign(positions.to(layer.mask.device), dense[positions].to(layer.mask.device))
    return lost
