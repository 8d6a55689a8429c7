"""ReLU, ReLU6 and LeakyReLU that keep one bit an element for the backward pass, never their output.

A plain ReLU keeps its dense output alive, which undoes what pruned caches save. ReLU6 needs one bit too: its
gradient passes exactly where `0 < x < 6`. LeakyReLU's gradient has two values.

While growth is scored it passes at `x = 0` too: a dead filter of NSConv gives exactly 0 everywhere, and with
ReLU's usual derivative there it could never grow back.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.nn.bits import pack_bits, unpack_bits, unpack_factors
from fedmef.nn.elements import greater
from fedmef.nn.layout import from_memory_order, in_memory_order, is_channels_last

_at_zero: ContextVar[bool] = ContextVar("at_zero", default=False)


@contextmanager
def passing_at_zero() -> Iterator[None]:
    """Forward passes inside the block let gradients through where the input is exactly 0."""
    before = _at_zero.set(True)
    try:
        yield
    finally:
        _at_zero.reset(before)


class _Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, upper: float | None, in_place: bool) -> Tensor:
        zero = input == 0 if in_place and _at_zero.get() else None
        output = input.clamp_(min=0, max=upper) if in_place else input.clamp(min=0, max=upper)
        if in_place:
            ctx.mark_dirty(input)
        ctx.channels_last = is_channels_last(output)
        ordered = in_memory_order(output, ctx.channels_last)
        inside = greater(ordered, 0)
        if _at_zero.get():
            zero = input == 0 if zero is None else zero
            inside.logical_or_(in_memory_order(zero, ctx.channels_last))
        if upper is not None:
            inside.logical_and_(ordered < upper)
        ctx.save_for_backward(pack_bits(inside))
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        (bits,) = ctx.saved_tensors
        ordered = in_memory_order(grad_output, ctx.channels_last)
        passing = unpack_factors(bits, ordered.numel(), ordered.dtype).view(ordered.shape)
        return from_memory_order(passing.mul_(ordered), ctx.channels_last), None, None


class _Leaky(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, slope: float, in_place: bool) -> Tensor:
        ctx.channels_last, ctx.slope = is_channels_last(input), slope
        ctx.save_for_backward(pack_bits(greater(in_memory_order(input, ctx.channels_last), 0)))
        if in_place:
            ctx.mark_dirty(input)
            return F.leaky_relu_(input, slope)
        return F.leaky_relu(input, slope)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        (bits,) = ctx.saved_tensors
        ordered = in_memory_order(grad_output, ctx.channels_last)
        positive = unpack_bits(bits, ordered.numel()).view(ordered.shape)
        gradient = torch.where(positive, ordered, ordered * ctx.slope)
        return from_memory_order(gradient, ctx.channels_last), None, None


def relu(input: Tensor) -> Tensor:
    """`max(input, 0)`, keeping one bit an element."""
    return clamp(input, None)


def relu6(input: Tensor) -> Tensor:
    """`min(max(input, 0), 6)`, keeping one bit an element."""
    return clamp(input, 6.0)


def clamp(input: Tensor, upper: float | None, in_place: bool = False) -> Tensor:
    """`max(input, 0)`, and at most `upper`, keeping one bit an element."""
    if not (torch.is_grad_enabled() and input.requires_grad):
        return input.clamp_(min=0, max=upper) if in_place else input.clamp(min=0, max=upper)
    output: Tensor = _Clamp.apply(input, upper, in_place)  # type: ignore[no-untyped-call]
    return output


def leaky_relu(input: Tensor, slope: float = 0.01, in_place: bool = False) -> Tensor:
    """`F.leaky_relu`, keeping one bit an element."""
    if not (torch.is_grad_enabled() and input.requires_grad):
        return F.leaky_relu(input, slope, in_place)
    output: Tensor = _Leaky.apply(input, slope, in_place)  # type: ignore[no-untyped-call]
    return output


class ReLU(nn.Module):
    """Drop-in for `nn.ReLU`.

    Not in place unless it must be: where a BatchNorm went away, its input may be needed again.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        return clamp(input, None, self.inplace)


class ReLU6(ReLU):
    """Drop-in for `nn.ReLU6`."""

    def forward(self, input: Tensor) -> Tensor:
        return clamp(input, 6.0, self.inplace)


class LeakyReLU(nn.LeakyReLU):
    """Drop-in for `nn.LeakyReLU`."""

    def forward(self, input: Tensor) -> Tensor:
        return leaky_relu(input, self.negative_slope, self.inplace)
