"""Gives a model whose `forward()` calls `F.relu` and friends the same memory-saving versions as modules get.

Swapping modules does not reach such calls. While the model runs, they are answered by ours; everything else,
control flow included, stays the user's own code, and so does all of a module that is skipped.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedmef.nn.dropout import dropout
from fedmef.nn.pooling import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from fedmef.nn.relu import clamp, leaky_relu
from fedmef.nn.smooth import SMOOTH, smooth
from fedmef.nn.weighting import multiply


def _relu(input: Tensor, inplace: bool = False) -> Tensor:
    return clamp(input, None, inplace)


def _relu6(input: Tensor, inplace: bool = False) -> Tensor:
    return clamp(input, 6.0, inplace)


def _leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return leaky_relu(input, negative_slope, inplace)


def _max_pool2d(input: Tensor, *args: Any, return_indices: bool = False, **kwargs: Any) -> Tensor:
    return max_pool2d(input, *args, **kwargs)


def _smooth(function: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    in_place = kwargs.pop("inplace", False)
    if args and isinstance(args[-1], bool):
        *args, in_place = args  # type: ignore[assignment]
    return smooth(input, lambda values: function(values, *args, **kwargs), in_place)


SAVING_VERSIONS: dict[str, Callable[..., Tensor]] = {
    "relu": _relu,
    "relu_": partial(_relu, inplace=True),
    "relu6": _relu6,
    "leaky_relu": _leaky_relu,
    "leaky_relu_": partial(_leaky_relu, inplace=True),
    "dropout": dropout,
    "max_pool2d": _max_pool2d,
    "avg_pool2d": avg_pool2d,
    "adaptive_avg_pool2d": adaptive_avg_pool2d,
}

# Those whose gradient is rounded.
ROUNDED_VERSIONS: dict[str, Callable[..., Tensor]] = {
    function.__name__: partial(_smooth, function) for function in SMOOTH.values()
}


@dataclass(frozen=True)
class Saving:
    """Which calls are answered, besides those that keep less at no price.

    Attributes:
        rounded: those of smooth activations, whose gradient is rounded then.
        gate_sparsity: share of a gate's input that is forgotten; None leaves products to PyTorch.
        dtype: how the rest of it is stored.
    """

    rounded: bool = False
    gate_sparsity: float | None = None
    dtype: torch.dtype | None = None

    @property
    def versions(self) -> dict[str, Callable[..., Any]]:
        """Our versions by name."""
        products = {}
        if self.gate_sparsity is not None:
            product = partial(multiply, sparsity=self.gate_sparsity, dtype=self.dtype)
            products = dict.fromkeys(("mul", "__mul__", "__rmul__", "multiply"), product)
        return SAVING_VERSIONS | (ROUNDED_VERSIONS if self.rounded else {}) | products

    def enter(self, model: nn.Module, args: Any) -> None:
        """A hook: from here on calls are answered."""
        _mode(self).__enter__()  # type: ignore[no-untyped-call]

    def leave(self, model: nn.Module, args: Any, output: Any) -> None:
        """A hook: and no longer."""
        _mode(self).__exit__(None, None, None)  # type: ignore[no-untyped-call]


class _SavingFunctions(TorchFunctionMode):
    def __init__(self, versions: dict[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.versions = versions

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        saving = self.versions.get(getattr(func, "__name__", ""))
        if saving is None or kwargs.get("return_indices") or "out" in kwargs or _SKIPPED.depth:
            return func(*args, **kwargs)
        return saving(*args, **kwargs)


class _Skipped(threading.local):
    """How many skipped modules run inside each other right now, per thread as modes are."""

    depth = 0


_SKIPPED = _Skipped()


@cache
def _mode(saving: Saving) -> _SavingFunctions:
    return _SavingFunctions(saving.versions)


def save_memory_in_functionals(
    model: nn.Module,
    skipped: Iterable[nn.Module] = (),
    saving: Saving = Saving(),  # noqa: B008  (frozen)
) -> None:
    """Answer the model's functional calls with the versions that keep little for the backward pass."""
    model.register_forward_pre_hook(saving.enter)
    model.register_forward_hook(saving.leave, always_call=True)
    for module in skipped:
        module.register_forward_pre_hook(_pause)
        module.register_forward_hook(_resume, always_call=True)


def are_saving(model: nn.Module) -> bool:
    """Whether the model's functional calls are answered by the versions that keep little."""
    owners = (getattr(hook, "__self__", None) for hook in model._forward_pre_hooks.values())
    return any(isinstance(owner, Saving) for owner in owners)


@contextmanager
def as_written() -> Iterator[None]:
    """In this block no call is answered: whoever follows a model sees what its code calls."""
    _SKIPPED.depth += 1
    try:
        yield
    finally:
        _SKIPPED.depth -= 1


def stop_saving(model: nn.Module) -> None:
    """Undo `save_memory_in_functionals`."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for number, hook in list(hooks.items()):
                if hook in (_pause, _resume) or isinstance(getattr(hook, "__self__", None), Saving):
                    del hooks[number]
                    module._forward_hooks_always_called.pop(number, None)


def _pause(module: nn.Module, args: Any) -> None:
    _SKIPPED.depth += 1


def _resume(module: nn.Module, args: Any, output: Any) -> None:
    _SKIPPED.depth -= 1
