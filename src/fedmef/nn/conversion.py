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
class Keeper:
    """A module that keeps something for the backward pass: its name ("" is the network), class and bytes."""

    name: str
    kind: str
    size: int


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
        keepers: what `kept` is kept by, layer by layer, the most first.
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
    keepers: tuple[Keeper, ...] = ()
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
        return "\n".join(lines + self._kept_lines())

    def _kept_lines(self) -> list[str]:
        """What a step still keeps: bytes by kind of layer, and the layer with most of them."""
        if self.kept is None or not self.main_keepers:
            return []
        images = max(2, self.measured_on[0])
        lines = [
            f"  for the backward pass of {images} images it still keeps {_bytes(self.kept)} of "
            f"{_bytes(self.kept_before or 0)}:"
        ]
        for kind, size in self.main_keepers.items():
            layers = [keeper for keeper in self.keepers if keeper.kind == kind]
            if not layers[0].name:
                lines.append(f"    {kind}.forward() itself: {_bytes(size)}")
            elif len(layers) == 1:
                lines.append(f"    {kind} '{layers[0].name}': {_bytes(size)}")
            else:
                most = f"most in '{layers[0].name}', {_bytes(layers[0].size)}"
                lines.append(f"    {len(layers)} x {kind}: {_bytes(size)} ({most})")
        return lines

    @property
    def main_keepers(self) -> dict[str, int]:
        """The classes of modules that keep what matters, with the bytes of all such modules; most first."""
        sizes: Counter[str] = Counter()
        for keeper in self.keepers:
            sizes[keeper.kind] += keeper.size
        least = _WORTH_NAMING * (self.kept_before or 0)
        return {kind: size for kind, size in sizes.most_common(_SHOWN) if size > least}


def conversion_of(model: nn.Module) -> Conversion | None:
    """What `sparsify` did to this model; None if it did nothing."""
    found = vars(model).get(_ATTRIBUTE)
    return found if isinstance(found, Conversion) else None


def attach(model: nn.Module, conversion: Conversion) -> None:
    """Let a model remember how it came about."""
    vars(model)[_ATTRIBUTE] = conversion


def find_keepers(model: nn.Module, inputs: Sequence[Any]) -> tuple[Keeper, ...] | None:
    """What a training step keeps, by the modules that keep it, most first; None if it cannot run.

    The model stays as it is. Weights, buffers and the inputs do not count.
    """
    inputs = [_of_two(value) for value in inputs]
    seen: list[tuple[str, weakref.ref[Tensor]]] = []

    with only_looking(model), torch.enable_grad(), _running_modules(model) as running:

        def pack(tensor: Tensor) -> Tensor:
            seen.append((running[-1] if running else "", weakref.ref(tensor)))
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
        for name, reference in seen:
            tensor = reference()
            if tensor is not None and _address(tensor) not in counted:
                counted.add(_address(tensor))
                kept[name] += tensor.untyped_storage().nbytes()
        del output
    return tuple(Keeper(name, _kind(model.get_submodule(name)), size) for name, size in kept.most_common())


def _of_two(value: Any) -> Any:
    """BatchNorm needs two images to train."""
    return torch.cat([value, value]) if isinstance(value, Tensor) and len(value) == 1 else value


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def _running_modules(model: nn.Module) -> Iterator[list[str]]:
    """The names of the modules that are running, innermost last; one without a name has its caller's."""
    running: list[str] = []
    names = {module: name for name, module in model.named_modules()}

    def enter(module: nn.Module, args: Any) -> None:
        running.append(names.get(module, running[-1] if running else ""))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        running.pop()

    hooks = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield running
    finally:
        for hook in hooks:
            hook.remove()


def _kind(module: nn.Module) -> str:
    return type(module.activation if isinstance(module, Smooth) else module).__name__


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + more
