"""Pooling that keeps little for the backward pass: a byte an output for the maximum, nothing for the average.

PyTorch's max-pooling keeps its dense input and an int64 index for every output; its average-pooling keeps the
dense input although only the shape matters.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pair = tuple[int, int]
Size = int | Pair


def pair(size: Size) -> Pair:
    """`3` → `(3, 3)`, as PyTorch reads kernel sizes and strides."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        kernel: Pair,
        stride: Pair,
        padding: Pair,
        dilation: Pair,
        ceil_mode: bool,
    ) -> Tensor:
        output, index = F.max_pool2d_with_indices(input, kernel, stride, padding, dilation, ceil_mode)
        offsets = _offsets(kernel, dilation, input.shape[-1], input.device)
        places = torch.zeros(int(offsets[-1]) + 1, dtype=torch.uint8, device=input.device)
        places[offsets] = torch.arange(offsets.numel(), dtype=torch.uint8, device=input.device)
        ctx.save_for_backward(places[index - _corners(output, stride, padding, input.shape[-1])])
        ctx.input_shape, ctx.geometry = input.shape, (kernel, stride, padding, dilation)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = ctx.saved_tensors
        kernel, stride, padding, dilation = ctx.geometry
        height, width = ctx.input_shape[-2:]
        planes = grad_output.new_zeros(*ctx.input_shape[:-2], height * width)
        offset = _offsets(kernel, dilation, width, planes.device)[place.long()]
        index = (offset + _corners(grad_output, stride, padding, width)).flatten(-2)
        grad_input = planes.scatter_add_(-1, index, grad_output.flatten(-2))
        return grad_input.view(ctx.input_shape), None, None, None, None, None


class _AvgPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        kernel: Pair,
        stride: Pair,
        padding: Pair,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: int | None,
    ) -> Tensor:
        ctx.input_shape = input.shape
        ctx.arguments = (kernel, stride, padding, ceil_mode, count_include_pad, divisor)
        return F.avg_pool2d(input, *ctx.arguments)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        shape_only = grad_output.new_empty(1).expand(ctx.input_shape)
        grad_input = torch.ops.aten.avg_pool2d_backward(grad_output, shape_only, *ctx.arguments)
        return grad_input, None, None, None, None, None, None


class _AdaptiveAvgPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, output_size: Any) -> Tensor:
        ctx.input_shape = input.shape
        return F.adaptive_avg_pool2d(input, output_size)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        shape_only = grad_output.new_empty(1).expand(ctx.input_shape)
        return torch.ops.aten._adaptive_avg_pool2d_backward(grad_output.contiguous(), shape_only), None


def max_pool2d(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """`F.max_pool2d`, keeping one byte an output; windows of more than 256 elements are left to PyTorch."""
    kernel = pair(kernel_size)
    geometry = (kernel, pair(stride or kernel), pair(padding), pair(dilation), ceil_mode)
    if kernel[0] * kernel[1] > 256 or not (torch.is_grad_enabled() and input.requires_grad):
        return F.max_pool2d(input, *geometry)
    output: Tensor = _MaxPool.apply(input, *geometry)  # type: ignore[no-untyped-call]
    return output


def avg_pool2d(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """`F.avg_pool2d`, keeping nothing."""
    kernel = pair(kernel_size)
    output: Tensor = _AvgPool.apply(  # type: ignore[no-untyped-call]
        input, kernel, pair(stride or kernel), pair(padding), ceil_mode, count_include_pad, divisor_override
    )
    return output


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """`F.adaptive_avg_pool2d`, keeping nothing."""
    if output_size in (1, (1, 1), [1, 1]):  # a mean in PyTorch, which keeps nothing either
        return F.adaptive_avg_pool2d(input, output_size)
    output: Tensor = _AdaptiveAvgPool.apply(input, output_size)  # type: ignore[no-untyped-call]
    return output


class MaxPool2d(nn.MaxPool2d):
    """Drop-in for `nn.MaxPool2d` (without `return_indices`)."""

    def forward(self, input: Tensor) -> Tensor:
        return max_pool2d(input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


class AdaptiveAvgPool2d(nn.AdaptiveAvgPool2d):
    """Drop-in for `nn.AdaptiveAvgPool2d`."""

    def forward(self, input: Tensor) -> Tensor:
        return adaptive_avg_pool2d(input, self.output_size)


class AvgPool2d(nn.AvgPool2d):
    """Drop-in for `nn.AvgPool2d`."""

    def forward(self, input: Tensor) -> Tensor:
        return avg_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


def _corners(output: Tensor, stride: Pair, padding: Pair, width: int) -> Tensor:
    """[h, w]: where in a flattened plane of this width every window's upper left corner is."""
    rows = torch.arange(output.shape[-2], device=output.device).unsqueeze(1) * stride[0] - padding[0]
    columns = torch.arange(output.shape[-1], device=output.device) * stride[1] - padding[1]
    return rows * width + columns


def _offsets(kernel: Pair, dilation: Pair, width: int, device: torch.device) -> Tensor:
    """How far each element of a window is from its corner, in a flattened plane of this width.

    Two elements of a window that is wider than the plane may have one offset: then they are one pixel.
    """
    rows = torch.arange(kernel[0], device=device).unsqueeze(1) * dilation[0]
    columns = torch.arange(kernel[1], device=device) * dilation[1]
    return (rows * width + columns).flatten()
