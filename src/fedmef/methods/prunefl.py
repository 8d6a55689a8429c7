"""PruneFL (Jiang et al. 2022, https://arxiv.org/abs/1909.12326): keeps the weights of largest `g² / t`.

That is the squared gradient per unit of time. In adjustment rounds a device adds up the squared gradients of
*all* positions, so it holds a dense tensor for every layer; FedMef sets PruneFL aside for that memory. An
ordinary step holds none of them.

Weights move freely between layers, as in the paper. Deviations, so that methods are compared at one size and
from one start: the total number of active weights stays what the sparsity says, where the paper's grows and
shrinks; the first masks are random, where the paper prunes at one device before the rounds begin; and `t`
counts multiply-adds, where the paper times a device.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedmef.errors import RejectedError
from fedmef.methods.base import Adjustment, Rules, adjustable_layers, expect_extras, sample_weights
from fedmef.methods.fedtiny import FedTiny
from fedmef.nn.backend import TorchBackend
from fedmef.nn.layers import SparseConv2d, sparse_layers
from fedmef.sparsity.arrays import Array, Integers
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Network
from fedmef.sparsity.operations import Layer
from fedmef.wire.job import Job
from fedmef.wire.update import Extras, Update

if TYPE_CHECKING:
    from fedmef.device.training import LocalTraining


class PruneFL(FedTiny):
    """A random sparse network with BatchNorm; adjustment rounds choose all its positions again."""

    fixed_layer_counts = False
    needs_torch = True

    def train(self, local: "LocalTraining", job: Job) -> Extras:
        """Ordinary training; in adjustment rounds the importance of every position is added up meanwhile."""
        if not job.adjusts:
            local.fit(job.local_epochs)
            return Extras()
        assert isinstance(local.backend, TorchBackend)
        layers = sparse_layers(local.backend.module)
        adjustable = {name: layers[name] for name in adjustable_layers(local.backend.network)}
        with squared_gradients(adjustable) as importance:
            local.fit(job.local_epochs)
        # Devices are weighted by their samples; a sum over steps would count samples twice.
        steps = local.steps(job.local_epochs)
        return Extras(
            arrays={f"{name}.importance": (value / steps).cpu().numpy() for name, value in importance.items()}
        )

    def check(self, model: Model, update: Update, job: Job) -> None:
        """In adjustment rounds every update has the importances."""
        layers = adjustable_layers(model.network) if job.adjusts else {}
        expect_extras(update, arrays=[f"{name}.importance" for name in layers])
        for name, layer in layers.items():
            _importance(update, name, layer.size)

    def extra_bytes(self, model: Model, job: Job) -> int:
        """The importances, in adjustment rounds."""
        layers = adjustable_layers(model.network).values() if job.adjusts else ()
        return sum(layer.size * np.dtype(np.float32).itemsize for layer in layers)

    def adjust(self, model: Model, updates: Sequence[Update], job: Job, rules: Rules) -> Adjustment:
        """Of all prunable layers together, keep the positions of largest `g² / t`."""
        layers, times = adjustable_layers(model.network), layer_times(model.network)
        ratios = {}
        for name, layer in layers.items():
            sent = [_importance(update, name, layer.size) for update in updates]
            ratios[name] = rules.combine(sent, sample_weights(updates)) / times[name]
        chosen = choose_positions(ratios, sum(model.values(name).size for name in layers))
        lost = [_reassign(model, name, positions) for name, positions in chosen.items()]
        dropped = np.concatenate([*lost, np.empty(0)])
        return Adjustment(dropped.size, float(dropped.mean()) if dropped.size else None)


def choose_positions(ratios: Mapping[str, Array], count: int) -> dict[str, Integers]:
    """The `count` positions of largest ratio over all layers, ascending; every layer keeps at least one."""
    lifted = [np.empty(0)]
    for ratio in ratios.values():
        part = ratio.astype(np.float64)
        part[part.argmax()] = np.inf
        lifted.append(part)
    best = np.sort(np.argsort(-np.concatenate(lifted), kind="stable")[:count])
    chosen, start = {}, 0
    for name, ratio in ratios.items():
        inside = best[(best >= start) & (best < start + ratio.size)]
        chosen[name] = inside - start
        start += ratio.size
    return chosen


def layer_times(network: Network) -> dict[str, int]:
    """`t`: what one weight of a layer costs in a forward pass: a multiply-add for each output pixel."""
    times: dict[str, int] = {}
    for operation in network.operations:
        if isinstance(operation, Layer):
            _, *size = network.shapes[operation.name]
            times[operation.module] = times.get(operation.module, 0) + math.prod(size)
    return times


@contextmanager
def squared_gradients(layers: Mapping[str, SparseConv2d]) -> Iterator[dict[str, Tensor]]:
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


def _importance(update: Update, name: str, size: int) -> Array:
    importance = update.extras.arrays.get(f"{name}.importance")
    if importance is None or importance.shape != (size,):
        raise RejectedError(f"device {update.device} sent no importance of {name}")
    if importance.dtype != np.float32 or not np.isfinite(importance).all() or (importance < 0).any():
        raise RejectedError(f"device {update.device} sent importances of {name} that make no sense")
    return importance


def _reassign(model: Model, name: str, positions: Integers) -> Array:
    """Make these positions active, new ones with 0; returns the magnitudes that were dropped."""
    active, values = model.positions(name), model.values(name)
    dense = np.zeros(model.network.sparse_layers[name].size, dtype=values.dtype)
    dense[active] = values
    lost: Array = np.abs(values[np.isin(active, positions, invert=True)])
    model.assign(name, positions, dense[positions])
    return lost
