"""ReLU and ReLU6 that keep one bit an element for the backward pass, never their output.

A plain ReLU keeps its dense output alive, which undoes what pruned caches save. ReLU6 needs one bit too: its
gradient passes exactly where `0 < x < 6`.

While growth is scored it passes at `x = 0` too: a dead filter of NSConv gives exactly 0 everywhere, and with
ReLU's usual derivative there it could never grow back.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from fedmef.nn.bits import pack_bits, unpack_factors
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
    def forward(ctx: Any, input: Tensor, upper: float | None) -> Tensor:
        output = input.clamp(min=0, max=upper)
        ctx.channels_last = is_channels_last(output)
        ordered = in_memory_order(output, ctx.channels_last)
        inside = greater(ordered, 0)
        if _at_zero.get():
            inside.logical_or_(in_memory_order(input, ctx.channels_last) == 0)
        if upper is not None:
            inside.logical_and_(ordered < upper)
        ctx.save_for_backward(pack_bits(inside))
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (bits,) = ctx.saved_tensors
        ordered = in_memory_order(grad_output, ctx.channels_last)
        passing = unpack_factors(bits, ordered.numel(), ordered.dtype).view(ordered.shape)
        return from_memory_order(passing.mul_(ordered), ctx.channels_last), None


def relu(input: Tensor) -> Tensor:
    """`max(input, 0)`, keeping one bit an element."""
    return clamp(input, None)


def relu6(input: Tensor) -> Tensor:
    """`min(max(input, 0), 6)`, keeping one bit an element."""
    return clamp(input, 6.0)


def clamp(input: Tensor, upper: float | None) -> Tensor:
    """`max(input, 0)`, and at most `upper`, keeping one bit an element."""
    if not (torch.is_grad_enabled() and input.requires_grad):
        return input.clamp(min=0, max=upper)
    output: Tensor = _Clamp.apply(input, upper)  # type: ignore[no-untyped-call]
    return output


class ReLU(nn.Module):
    """Drop-in for `nn.ReLU`. Never in place: where a BatchNorm went away, its input may be needed again."""

    def forward(self, input: Tensor) -> Tensor:
        return relu(input)


class ReLU6(nn.Module):
    """Drop-in for `nn.ReLU6`."""

    def forward(self, input: Tensor) -> Tensor:
        return relu6(input)
