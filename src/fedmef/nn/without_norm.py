"""What is left where a BatchNorm goes away: nothing, or what its class does besides normalising."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedmef.nn.kinds import is_plain_norm


class Copy(nn.Module):
    """Gives a tensor of its own, as a BatchNorm did: what reads it may change it in place."""

    def forward(self, input: Tensor) -> Tensor:
        return input.clone()


class _NoNorm(TorchFunctionMode):
    """Answers `batch_norm` with its input."""

    def __init__(self, copied: bool) -> None:
        super().__init__()
        self.copied = copied

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") != "batch_norm":
            return func(*args, **kwargs)
        taken = args[0] if args else kwargs["input"]
        return taken.clone() if self.copied else taken


_MODES = {copied: _NoNorm(copied) for copied in (False, True)}


def without_norm(module: nn.Module, copied: bool) -> nn.Module:
    """What takes the place of a BatchNorm.

    A class with a forward() of its own, such as norm and activation in one, keeps it: only its call of
    `batch_norm` is answered by the input, and its parameters and statistics go.
    """
    if is_plain_norm(module):
        return Copy() if copied else nn.Identity()
    for name in ("weight", "bias"):
        module._parameters[name] = None
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        module._buffers[name] = None
    module.affine = module.track_running_stats = False  # type: ignore[assignment]
    module.register_forward_pre_hook(_enter_copying if copied else _enter)
    module.register_forward_hook(_leave_copying if copied else _leave, always_call=True)
    return module


def has_no_norm(module: nn.Module) -> bool:
    """Whether a BatchNorm has lost its normalisation and kept the rest of its forward()."""
    hooks = module._forward_pre_hooks.values()
    return _enter in hooks or _enter_copying in hooks


def _enter(module: nn.Module, args: Any) -> None:
    _MODES[False].__enter__()  # type: ignore[no-untyped-call]


def _leave(module: nn.Module, args: Any, output: Any) -> None:
    _MODES[False].__exit__(None, None, None)  # type: ignore[no-untyped-call]


def _enter_copying(module: nn.Module, args: Any) -> None:
    _MODES[True].__enter__()  # type: ignore[no-untyped-call]


def _leave_copying(module: nn.Module, args: Any, output: Any) -> None:
    _MODES[True].__exit__(None, None, None)  # type: ignore[no-untyped-call]
