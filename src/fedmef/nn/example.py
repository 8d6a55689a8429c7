"""A call of a network to look at: the user's own example, or images that its first layer takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedmef.errors import ConversionError, UserError
from fedmef.nn.facts import NetworkGraph
from fedmef.nn.graph import trace_network
from fedmef.nn.kinds import LAYERS
from fedmef.nn.place import where
from fedmef.nn.record import record
from fedmef.nn.trace import modes_kept
from fedmef.nn.unchanged import only_looking

SIZES = (32, 64, 224, 28, 299)  # heights and widths that are tried, in this order


@dataclass(frozen=True)
class Example:
    """The arguments of one call."""

    arguments: tuple[Any, ...]
    is_guess: bool = False

    @classmethod
    def of(cls, example: Tensor | Sequence[Any] | None) -> "Example | None":
        """What a user gave, checked."""
        if example is None:
            return None
        arguments = (example,) if isinstance(example, Tensor) else tuple(example)
        if not any(isinstance(value, Tensor) and value.ndim for value in arguments):
            raise UserError(f"example = {type(example).__name__}: must be a batch of images, as a tensor")
        return cls(arguments)

    @classmethod
    def guessed(cls, model: nn.Module) -> "Example | None":
        """Random images that the model can take; None if none of the usual sizes will do."""
        layer = next((m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)), None)
        if layer is None or is_lazy(layer.weight):
            return None
        if isinstance(layer, nn.Linear):
            shapes: list[tuple[int, ...]] = [(2, layer.in_features)]
        else:
            shapes = [(2, layer.in_channels, size, size) for size in SIZES]
        for shape in shapes:
            random = torch.Generator().manual_seed(0)
            images = torch.randn(shape, generator=random).to(layer.weight.device, layer.weight.dtype)
            try:
                with only_looking(model), torch.no_grad():
                    model.eval()(images)
            except Exception:  # user code runs here, so it may raise anything
                continue
            return cls((images,), is_guess=True)
        return None

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the images."""
        return next(tuple(value.shape) for value in self.arguments if isinstance(value, Tensor))


def follow(
    model: nn.Module, is_left_alone: Callable[[str], bool], example: Example | None
) -> tuple[NetworkGraph, Example | None]:
    """The graph of a network, and the example that it was followed with, if one was needed or given.

    Some layers run in training only, or in evaluation only; the mode that runs more of them is followed.
    """
    graph, used = _follow(model, is_left_alone, example)
    layers = [name for name, module in model.named_modules() if isinstance(module, LAYERS)]
    if all(name in graph.layers or is_left_alone(name) for name in layers):
        return graph, used
    with modes_kept(model):
        try:
            other, _ = _follow(model.train(not model.training), is_left_alone, example)
        except ConversionError:
            return graph, used
    return other if len(other.layers) > len(graph.layers) else graph, used


def _follow(
    model: nn.Module, is_left_alone: Callable[[str], bool], example: Example | None
) -> tuple[NetworkGraph, Example | None]:
    try:
        with only_looking(model):
            return trace_network(model, is_left_alone), example
    except ConversionError as error:
        if example is not None:
            run_once(model, example)  # it may make modules at its first call
            with only_looking(model):
                return trace_network(model, is_left_alone, example.arguments), example
        before = set(model.modules())
        guess = Example.guessed(model)
        if guess is None or set(model.modules()) != before:  # what it made there was made for a guess
            raise
        with only_looking(model):
            graph = trace_network(model, is_left_alone, guess.arguments)
        if graph.branches:
            raise error  # only the user knows an example that takes the right path
        return graph, guess


def run_once(model: nn.Module, example: Example | None) -> None:
    """Run the example: lazy modules get their shapes, and forward() makes what it makes at the first call.

    Raises `ConversionError` if it cannot run, or if there are lazy modules and no example.
    """
    if example is None:
        lazy = next((name for name, module in model.named_modules() if _is_lazy(module)), None)
        if lazy is not None:
            raise ConversionError(
                f"sparsify cannot convert '{lazy}' ({type(model.get_submodule(lazy)).__name__}): it has no "
                "shape yet; give example=, a batch of images"
            )
        return
    stack: list[str] = []
    try:
        with only_looking(model):
            record(model, example.arguments, lambda module, name: False, stack)
    except Exception as error:  # user code runs here, so it may raise anything
        raise ConversionError(
            f"sparsify cannot run {type(model).__name__} on the example: {where(error, model, stack)}"
        ) from error


def has_lazy_modules(model: nn.Module) -> bool:
    """Whether some modules wait for their shapes."""
    return any(_is_lazy(module) for module in model.modules())


def _is_lazy(module: nn.Module) -> bool:
    own = [*module._parameters.values(), *module._buffers.values()]
    return any(tensor is not None and is_lazy(tensor) for tensor in own)
