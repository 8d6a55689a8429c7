"""ReLU and ReLU6 that keep one bit an element for the backward pass, never their output.

A plain ReLU keeps its dense output alive, which undoes what pruned caches save. ReLU6 needs one bit too: its
gradient passes exactly where `0 < x < 6`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fedmef.sparsity.elements import greater
from fedmef.sparsity.masks import pack_bits, unpack_factors


class _Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, upper: float | None) -> Tensor:  # noqa: A002
        output = input.clamp(min=0, max=upper)
        inside = greater(output, 0)
        if upper is not None:
            inside.logical_and_(output < upper)
        ctx.save_for_backward(pack_bits(inside))
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (bits,) = ctx.saved_tensors
        passing = unpack_factors(bits, grad_output.numel(), grad_output.dtype)
        return passing.view(grad_output.shape).mul_(grad_output), None


def relu(input: Tensor) -> Tensor:  # noqa: A002
    """`max(input, 0)`, keeping one bit an element."""
    return _clamp(input, None)


def relu6(input: Tensor) -> Tensor:  # noqa: A002
    """`min(max(input, 0), 6)`, keeping one bit an element."""
    return _clamp(input, 6.0)


class ReLU(nn.Module):
    """Drop-in for `nn.ReLU`. Never in place: where a BatchNorm went away, its input may be needed again."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, D102
        return relu(input)


class ReLU6(nn.Module):
    """Drop-in for `nn.ReLU6`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, D102
        return relu6(input)


def _clamp(input: Tensor, upper: float | None) -> Tensor:  # noqa: A002
    if not (torch.is_grad_enabled() and input.requires_grad):
        return input.clamp(min=0, max=upper)
    output: Tensor = _Clamp.apply(input, upper)  # type: ignore[no-untyped-call]
    return output
