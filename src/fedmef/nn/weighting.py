"""Features times a smaller factor, such as a gate of squeeze-and-excitation, with a pruned cache.

Such a factor, be it computed or a parameter, is a weight. So it is treated as a layer's weight is: the
gradient for the features is exact, and that for the factor uses their largest magnitudes.
"""

from typing import Any

import torch
from torch import Tensor

from fedmef.nn.cache import PrunedActivation
from fedmef.nn.layout import from_memory_order, in_memory_order, is_channels_last

SMALLER = 4  # times fewer numbers than the features have


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, factor: Tensor, sparsity: float, dtype: torch.dtype | None
    ) -> Tensor:
        ctx.channels_last = is_channels_last(input)
        ordered = in_memory_order(input, ctx.channels_last)
        pruned = PrunedActivation.prune(ordered, sparsity, dtype)
        ctx.ordered_shape = ordered.shape
        ctx.save_for_backward(factor, pruned.bits, pruned.values)
        return input * factor

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        factor, bits, values = ctx.saved_tensors
        grad_input = grad_output * factor if ctx.needs_input_grad[0] else None
        restored = PrunedActivation(bits, values).restore(ctx.ordered_shape, grad_output.dtype)
        kept = from_memory_order(restored, ctx.channels_last)
        return grad_input, (grad_output * kept).sum_to_size(factor.shape).to(factor.dtype), None, None


def multiply(left: Any, right: Any, sparsity: float, dtype: torch.dtype | None) -> Any:
    """`left * right`; if one of them is much smaller and learns, little is kept of the other."""
    for input, factor in ((left, right), (right, left)):
        if (smaller := _factor(input, factor)) is not None:
            return _Weighted.apply(input, smaller, sparsity, dtype)  # type: ignore[no-untyped-call]
    return left * right


def _factor(input: Any, factor: Any) -> Tensor | None:
    """The factor as small as it is, if it learns; None where PyTorch's product is as good."""
    if not (isinstance(input, Tensor) and isinstance(factor, Tensor) and torch.is_grad_enabled()):
        return None
    if not factor.requires_grad or input.dtype != factor.dtype or factor.ndim > input.ndim:
        return None
    for dimension, (size, stride) in enumerate(zip(factor.shape, factor.stride(), strict=True)):
        if stride == 0 and size > 1:  # expanded
            factor = factor.narrow(dimension, 0, 1)
    if factor.numel() * SMALLER > input.numel():
        return None
    fits = all(
        mine in (1, theirs) for mine, theirs in zip(factor.shape[::-1], input.shape[::-1], strict=False)
    )
    return factor if fits else None
