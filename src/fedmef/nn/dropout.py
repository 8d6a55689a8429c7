"""Dropout that keeps one bit an element for the backward pass; PyTorch's keeps a float.

The draws are the same.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.nn.bits import pack_bits, unpack_factors


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, p: float) -> Tensor:
        noise = torch.empty_like(input).bernoulli_(1 - p)
        ctx.p = p
        ctx.save_for_backward(pack_bits(noise > 0))
        return noise.div_(1 - p).mul_(input)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (bits,) = ctx.saved_tensors
        noise = unpack_factors(bits, grad_output.numel(), grad_output.dtype).view(grad_output.shape)
        return noise.div_(1 - ctx.p).mul_(grad_output), None


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`F.dropout`; what is not trained on a CPU, and out of place, is left to PyTorch."""
    learns = torch.is_grad_enabled() and input.requires_grad and training and 0 < p < 1
    if not learns or inplace or input.device.type != "cpu" or not input.is_contiguous():
        return F.dropout(input, p, training, inplace)
    output: Tensor = _Dropout.apply(input, p)  # type: ignore[no-untyped-call]
    return output


class Dropout(nn.Dropout):
    """Drop-in for `nn.Dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training, self.inplace)
