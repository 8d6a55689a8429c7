"""What `sparsify` achieved, in numbers and in plain words."""

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from fedmef.nn.smooth import Smooth
from fedmef.nn.unchanged import only_looking

_ATTRIBUTE = "_fedmef_conversion"
_SHOWN = 4  # names of a list that are printed
_WORTH_NAMING = 0.02  # of what the network kept before


@dataclass(frozen=True)
class Conversion:
    """What became of a network.

    Attributes:
        parameters, parameters_before: trained numbers.
        kept, kept_before: bytes that one training step keeps for the backward pass, besides the images and
            the weights; None where it was not measured.
        measured_on: the shape of the batch that they were measured with.
        sparse: layers that lost weights.
        dense: layers of ours, or layers that could have been sparse, with all their weights.
        left: what stays exactly as it was, with the reason.
        keepers: what most of `kept` is kept by: a module's class, and bytes.
        checked: whether the result was compared with the original code, by function.
    """

    parameters: int
    parameters_before: int
    kept: int | None = None
    kept_before: int | None = None
    measured_on: tuple[int, ...] = ()
    sparse: tuple[str, ...] = ()
    dense: tuple[str, ...] = ()
    left: dict[str, str] = field(default_factory=dict)
    keepers: dict[str, int] = field(default_factory=dict)
    checked: bool = False

    @property
    def parameter_ratio(self) -> float:
        """Parameters after, over those before."""
        return self.parameters / max(self.parameters_before, 1)

    @property
    def kept_ratio(self) -> float | None:
        """Kept activations after, over those before."""
        return None if self.kept is None or not self.kept_before else self.kept / self.kept_before

    def __str__(self) -> str:
        ratio = self.kept_ratio
        kept = "kept activations not measured (give example=)"
        if ratio is not None:
            kept = f"kept activations {ratio:.2f}x"
        lines = [
            f"sparsify: parameters {self.parameter_ratio:.2f}x, {kept}{', checked' if self.checked else ''}"
        ]
        if self.dense:
            lines.append(f"  all weights kept: {_listed(self.dense)}")
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left.items():
            reasons.setdefault(reason, []).append(name)
        lines += [f"  left as it is: {_listed(names)}: {reason}" for reason, names in reasons.items()]
        if self.kept_before and (keepers := self.main_keepers):
            shares = [f"{kind} {size / self.kept_before:.2f}x" for kind, size in keepers.items()]
            lines.append(f"  what still keeps memory: {', '.join(shares)}")
        return "\n".join(lines)

    @property
    def main_keepers(self) -> dict[str, int]:
        """The keepers that matter, largest first."""
        worth = {
            kind: size
            for kind, size in self.keepers.items()
            if size > _WORTH_NAMING * (self.kept_before or 0)
        }
        return dict(sorted(worth.items(), key=lambda item: -item[1])[:_SHOWN])


def conversion_of(model: nn.Module) -> Conversion | None:
    """What `sparsify` did to this model; None if it did nothing."""
    found = vars(model).get(_ATTRIBUTE)
    return found if isinstance(found, Conversion) else None


def attach(model: nn.Module, conversion: Conversion) -> None:
    """Let a model remember how it came about."""
    vars(model)[_ATTRIBUTE] = conversion


def kept_bytes(model: nn.Module, inputs: Sequence[Any]) -> dict[str, int] | None:
    """Bytes that a training step keeps, by the class of the module that keeps them; None if it cannot run.

    The model stays as it is. Weights, buffers and the inputs do not count.
    """
    inputs = [_of_two(value) for value in inputs]
    seen: list[tuple[str, weakref.ref[Tensor]]] = []

    with only_looking(model), torch.enable_grad(), _running_modules() as running:

        def pack(tensor: Tensor) -> Tensor:
            seen.append((running[-1] if running else type(model).__name__, weakref.ref(tensor)))
            return tensor

        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                output = model.train()(*inputs)  # as long as it lives, so does what is kept
        except Exception:  # user code runs here, so it may raise anything
            return None
        kept: Counter[str] = Counter()
        own = [
            *model.parameters(),
            *model.buffers(),
            *(value for value in inputs if isinstance(value, Tensor)),
        ]
        counted = {_address(tensor) for tensor in own}
        for kind, reference in seen:
            tensor = reference()
            if tensor is not None and _address(tensor) not in counted:
                counted.add(_address(tensor))
                kept[kind] += tensor.untyped_storage().nbytes()
        del output
    return dict(kept)


def _of_two(value: Any) -> Any:
    """BatchNorm needs two images to train."""
    return torch.cat([value, value]) if isinstance(value, Tensor) and len(value) == 1 else value


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def _running_modules() -> Iterator[list[str]]:
    """The classes of the modules that are running, innermost last."""
    running: list[str] = []

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        running.pop()

    hooks = [
        register_module_forward_pre_hook(lambda module, args: running.append(_kind(module))),
        register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield running
    finally:
        for hook in hooks:
            hook.remove()


def _kind(module: nn.Module) -> str:
    return type(module.activation if isinstance(module, Smooth) else module).__name__


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + more
