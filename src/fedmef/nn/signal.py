"""Whether a network's signal arrives: every layer lets something through, and every layer learns."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.nn.batchnorm import frozen_statistics
from fedmef.nn.layers import SparseConv2d
from fedmef.nn.trace import modes_kept

LARGEST = 1000.0  # of a layer's gradient, over the median's


def check_signal(model: nn.Module, images: Tensor, classes: int) -> list[str]:
    """What stands in the way of training, a line for each layer concerned; [] when nothing does.

    One forward and backward pass; weights, statistics, gradients and the random generator stay as they are.
    """
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, SparseConv2d | nn.Conv2d | nn.Linear)
    }
    weights = {
        name: layer.values if isinstance(layer, SparseConv2d) else layer.weight
        for name, layer in layers.items()
    }
    trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
    sizes: dict[str, float] = {}

    def note(name: str, layer: nn.Module, inputs: object, output: Tensor) -> None:
        sizes[name] = float(output.detach().square().mean().sqrt())

    hooks = [layer.register_forward_hook(partial(note, name)) for name, layer in layers.items()]
    try:
        with (
            torch.random.fork_rng(devices=[]),
            modes_kept(model),
            frozen_statistics(model),
            torch.enable_grad(),
        ):
            labels = torch.arange(len(images), device=images.device) % classes
            loss = F.cross_entropy(model.train()(images), labels)
            found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    norms = {
        name: 0.0 if gradient is None else float(gradient.norm())
        for name, gradient in zip(trained, found, strict=True)
    }
    return _problems(sizes, norms)


def _problems(sizes: dict[str, float], norms: dict[str, float]) -> list[str]:
    unsound = {name: size for name, size in sizes.items() if not _is_sound(size)}
    problems = [f"'{name}' gives {size:g} for every image" for name, size in unsound.items()]
    if problems:
        return problems  # what follows from them says no more
    ordered = sorted(norms.values())
    middle = ordered[len(ordered) // 2] if ordered else 0.0
    for name, norm in norms.items():
        if not _is_sound(norm):
            problems.append(f"'{name}' gets a gradient of {norm:g}: it cannot learn")
        elif norm > LARGEST * middle:
            problems.append(f"'{name}' gets a gradient {norm / middle:.0f} times that of other layers")
    return problems


def _is_sound(value: float) -> bool:
    return math.isfinite(value) and value > 0
