"""SiLU, GELU, Hardswish and their like with one byte an element for the backward pass instead of four.

Their gradient needs the input, which nobody else keeps. What is kept is the derivative, in 255 steps between
its smallest and its largest value: off by at most half a step, 0.25 % of a SiLU's range. So this is for
networks whose caches are pruned anyway. What they compute stays the same.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 255

# The modules, and the functions of the same names.
SMOOTH: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.SiLU: F.silu,
    nn.GELU: F.gelu,
    nn.Hardswish: F.hardswish,
    nn.Mish: F.mish,
    nn.ELU: F.elu,
    nn.CELU: F.celu,
    nn.SELU: F.selu,
}


class _Smooth(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, function: Callable[[Tensor], Tensor], in_place: bool) -> Tensor:
        with torch.enable_grad(), torch._C.DisableTorchFunction():  # not to be answered by ourselves again
            leaf = input.detach().requires_grad_()
            output = function(leaf)
            (derivative,) = torch.autograd.grad(output, leaf, torch.ones_like(output))
        low, high = (float(edge) for edge in derivative.aminmax())
        ctx.low, ctx.step = low, max(high - low, 1e-30) / STEPS
        ctx.save_for_backward(derivative.sub_(low).div_(ctx.step).round_().to(torch.uint8))
        if in_place:
            ctx.mark_dirty(input)
            return input.copy_(output.detach())
        return output.detach()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        (steps,) = ctx.saved_tensors
        return steps.to(grad_output.dtype).mul_(ctx.step).add_(ctx.low).mul_(grad_output), None, None


def smooth(input: Tensor, function: Callable[[Tensor], Tensor], in_place: bool = False) -> Tensor:
    """An activation of single elements, keeping one byte of each."""
    if torch.is_grad_enabled() and input.requires_grad:
        output: Tensor = _Smooth.apply(input, function, in_place)  # type: ignore[no-untyped-call]
        return output
    return input.copy_(function(input)) if in_place else function(input)


class Smooth(nn.Module):
    """Drop-in for such an activation, given as a module that is not in place."""

    def __init__(self, activation: nn.Module, inplace: bool = False) -> None:
        super().__init__()
        self.activation, self.inplace = activation, inplace

    def forward(self, input: Tensor) -> Tensor:
        return smooth(input, self.activation, self.inplace)
