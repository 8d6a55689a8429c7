"""Two layouts of [n, c, h, w] in memory: the default one, and channels last, which is faster on a CPU.

What is kept for the backward pass is kept as it lies in memory: another order would cost a dense copy.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def is_channels_last(tensor: Tensor) -> bool:
    """Whether the channels of a pixel lie side by side.

    `is_contiguous()` does not tell: one that has 1x1 pixels passes as both.
    """
    if tensor.ndim != 4:
        return False
    _, channels, height, width = tensor.shape
    return tensor.stride() == (height * width * channels, 1, width * channels, channels)


def in_memory_order(tensor: Tensor, channels_last: bool) -> Tensor:
    """A view of the tensor with its dimensions as they lie in memory."""
    return tensor.permute(0, 2, 3, 1) if channels_last else tensor


def from_memory_order(tensor: Tensor, channels_last: bool) -> Tensor:
    """The inverse of `in_memory_order`."""
    return tensor.permute(0, 3, 1, 2) if channels_last else tensor


def fastest_layout(strided_channels: Iterable[int]) -> torch.memory_format:
    """Channels last, which is faster, but not where oneDNN writes beyond its memory.

    On AVX2 (PyTorch 2.13) it does so in the weight gradient of a strided 1x1 convolution of fewer than 8
    channels.

    Args:
        strided_channels: input channels of every strided 1x1 convolution.
    """
    return torch.contiguous_format if min(strided_channels, default=8) < 8 else torch.channels_last
