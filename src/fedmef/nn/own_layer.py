"""A layer whose class has a forward() of its own, such as one that pads first, and sparse weights even so.

Its code stays. Only its call of `conv2d` or `linear` is answered, by a sparse layer that it has as `sparse`.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from fedmef.nn.layers import SparseConv2d

NAME = "sparse"
CALLS = ("conv2d", "linear")


@dataclass(frozen=True)
class OwnCall:
    """What such a forward() calls its function with, besides tensors."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


class _Answer(TorchFunctionMode):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in CALLS:
            return func(*args, **kwargs)
        return self.layer(args[0] if args else kwargs["input"])


class _Running(threading.local):
    def __init__(self) -> None:
        self.modes: list[_Answer] = []


_RUNNING = _Running()


def with_own_code(layer: nn.Module, sparse: SparseConv2d) -> nn.Module:
    """The layer without weights, and a sparse one in it; of its weight it can still read the shape."""
    shape = sparse.geometry.shape[: 4 if isinstance(layer, nn.Conv2d) else 2]
    del layer._parameters["weight"]
    layer._parameters["bias"] = None
    vars(layer)["weight"] = sparse.values.new_empty(1).detach().expand(shape)
    layer.add_module(NAME, sparse)
    layer.register_forward_pre_hook(_enter)
    layer.register_forward_hook(_leave, always_call=True)
    return layer


def own_sparse(layer: nn.Module) -> SparseConv2d | None:
    """The sparse layer that answers such a layer's call; None for any other layer."""
    sparse, ours = layer._modules.get(NAME), _enter in layer._forward_pre_hooks.values()
    return sparse if ours and isinstance(sparse, SparseConv2d) else None


def with_own_weights(layer: nn.Module, dense: nn.Linear | nn.Conv2d) -> nn.Module:
    """The inverse of `with_own_code`: the layer has the weights of a dense one, and no sparse one in it."""
    del layer._modules[NAME], vars(layer)["weight"]
    layer._parameters |= {name: dense._parameters[name] for name in ("weight", "bias")}
    for hooks in (layer._forward_pre_hooks, layer._forward_hooks):
        for number, hook in list(hooks.items()):
            if hook in (_enter, _leave):
                del hooks[number]
                layer._forward_hooks_always_called.pop(number, None)
    return layer


def _enter(layer: nn.Module, args: Any) -> None:
    _RUNNING.modes.append(_Answer(layer.get_submodule(NAME)))
    _RUNNING.modes[-1].__enter__()  # type: ignore[no-untyped-call]


def _leave(layer: nn.Module, args: Any, output: Any) -> None:
    _RUNNING.modes.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]
