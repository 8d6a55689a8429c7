"""Multiply-adds of a forward pass, counted in the real network by hooks.

One multiply-add is one FLOP, as in the paper; PyTorch's own `torch.utils.flop_counter` says two. Convolutions
and linear layers count, as the paper has it; normalisation, activations and the loss do not.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from fedmef.nn import SparseConv2d

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, SparseConv2d)


@dataclass(frozen=True)
class LayerPass:
    """What one image takes of a layer, all its calls together.

    Attributes:
        shape: of the dense weight, out first.
        active: weights that are not pruned.
        positions: outputs that each weight has a part in.
        inputs: elements of the layer's input.
    """

    shape: tuple[int, ...]
    active: int
    positions: int
    inputs: int


@dataclass(frozen=True)
class MultiplyAdds:
    """Of one image's forward pass: with every weight, and with the active ones only."""

    dense: int
    active: int


def multiply_adds(model: nn.Module, image_shape: Sequence[int]) -> MultiplyAdds:
    """What the model takes for an image; of a plain dense network both numbers are the same."""
    passes = layer_passes(model, image_shape).values()
    return MultiplyAdds(
        sum(torch.Size(layer.shape).numel() * layer.positions for layer in passes),
        sum(layer.active * layer.positions for layer in passes),
    )


def layer_passes(model: nn.Module, image_shape: Sequence[int]) -> dict[str, LayerPass]:
    """The layers by name, in order of execution; what `forward()` does without a module is not seen."""
    passes: dict[str, LayerPass] = {}

    def note(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        shape, active = _weights(module)
        before = passes.get(name, LayerPass(shape, active, 0, 0))
        positions = before.positions + output.numel() // shape[0]
        passes[name] = LayerPass(shape, active, positions, before.inputs + inputs[0].numel())

    modules = {name: module for name, module in model.named_modules() if isinstance(module, LAYERS)}
    with ExitStack() as undo:
        for name, module in modules.items():
            undo.callback(module.register_forward_hook(partial(note, name)).remove)
        forward_once(model, image_shape)
    return passes


def forward_once(model: nn.Module, image_shape: Sequence[int]) -> None:
    """One black image through the model, which stays as it is."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    training = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()(torch.zeros(1, *image_shape, device=device))
    finally:
        for module, was in training.items():
            module.training = was


def _weights(module: nn.Module) -> tuple[tuple[int, ...], int]:
    if isinstance(module, SparseConv2d):
        return module.geometry.shape, module.active_count
    assert isinstance(module.weight, Tensor)
    return tuple(module.weight.shape), module.weight.numel()
