"""Injected attackers: devices that send their update multiplied by a factor; for tests of the aggregation."""

import math

import torch
from torch import Tensor, nn

from fedmef.experiment.randomness import numpy_generator
from fedmef.nn import sparse_layers
from fedmef.sparsity import active_positions


def attackers(share: float, devices: int, seed: int) -> frozenset[int]:
    """The devices that attack, in every round the same."""
    count = math.floor(share * devices + 1e-6)
    chosen = numpy_generator(seed, "attackers").choice(devices, count, replace=False)
    return frozenset(chosen.tolist())


@torch.no_grad()
def scale_update(model: nn.Module, received: dict[str, Tensor], factor: float) -> None:
    """Multiply what training changed in every parameter, from the state that was received, by a factor."""
    layers = sparse_layers(model)
    for name, parameter in model.named_parameters():
        before = received[name].to(parameter.device)
        layer = layers.get(name.removesuffix(".values"))
        if layer is not None and name.endswith(".values"):
            before = _values_at(received, name.removesuffix(".values"), layer.active_positions())
        parameter.copy_(before + factor * (parameter - before))


def _values_at(state: dict[str, Tensor], layer: str, positions: Tensor) -> Tensor:
    """A layer's weights at other positions than its own: 0 where it has none."""
    mask, values = state[f"{layer}.mask"], state[f"{layer}.values"]
    dense = values.new_zeros(8 * mask.numel())
    dense[active_positions(mask, dense.numel())] = values
    return dense[positions.cpu()].to(positions.device)
