"""Gives a model whose `forward()` calls `F.relu` and friends the same memory-saving versions as modules get.

Swapping modules does not reach such calls. While the model runs, they are answered by ours; everything else,
control flow included, stays the user's own code, and so does all of a module that is skipped.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedmef.nn.pooling import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from fedmef.nn.relu import relu, relu6


def _relu(input: Tensor, inplace: bool = False) -> Tensor:
    return relu(input)


def _relu6(input: Tensor, inplace: bool = False) -> Tensor:
    return relu6(input)


def _max_pool2d(input: Tensor, *args: Any, return_indices: bool = False, **kwargs: Any) -> Tensor:
    return max_pool2d(input, *args, **kwargs)


SAVING_VERSIONS: dict[str, Callable[..., Tensor]] = {
    "relu": _relu,
    "relu6": _relu6,
    "max_pool2d": _max_pool2d,
    "avg_pool2d": avg_pool2d,
    "adaptive_avg_pool2d": adaptive_avg_pool2d,
}


class _SavingFunctions(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        saving = SAVING_VERSIONS.get(getattr(func, "__name__", ""))
        if saving is None or kwargs.get("return_indices") or _SKIPPED.depth:
            return func(*args, **kwargs)
        return saving(*args, **kwargs)


class _Skipped(threading.local):
    """How many skipped modules run inside each other right now, per thread as modes are."""

    depth = 0


_MODE = _SavingFunctions()
_SKIPPED = _Skipped()


def save_memory_in_functionals(model: nn.Module, skipped: Iterable[nn.Module] = ()) -> None:
    """Answer the model's functional calls with the versions that keep little for the backward pass."""
    model.register_forward_pre_hook(_enter)
    model.register_forward_hook(_leave, always_call=True)
    for module in skipped:
        module.register_forward_pre_hook(_pause)
        module.register_forward_hook(_resume, always_call=True)


def are_saving(model: nn.Module) -> bool:
    """Whether the model's functional calls are answered by the versions that keep little."""
    return _enter in model._forward_pre_hooks.values()


def stop_saving(model: nn.Module) -> None:
    """Undo `save_memory_in_functionals`."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for number, hook in list(hooks.items()):
                if hook in (_enter, _leave, _pause, _resume):
                    del hooks[number]
                    module._forward_hooks_always_called.pop(number, None)


def _enter(module: nn.Module, args: Any) -> None:
    _MODE.__enter__()  # type: ignore[no-untyped-call]


def _leave(module: nn.Module, args: Any, output: Any) -> None:
    _MODE.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def _pause(module: nn.Module, args: Any) -> None:
    _SKIPPED.depth += 1


def _resume(module: nn.Module, args: Any, output: Any) -> None:
    _SKIPPED.depth -= 1
