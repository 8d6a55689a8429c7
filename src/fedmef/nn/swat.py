"""SWAT (Raihan and Aamodt 2020, https://arxiv.org/abs/2007.14889): dense weights, sparse convolutions.

A forward pass uses the weights of largest magnitude only; the gradient reaches all of them. ZeroFL trains so.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from fedmef.nn.convolution import sparse_conv2d
from fedmef.nn.layers import SparseConv2d, sparse_layers
from fedmef.nn.topk import largest_magnitudes
from fedmef.sparsity.masks import active_count


class SwatConv2d(SparseConv2d):
    """A dense layer that convolves with its largest weights."""

    sparsity: float

    def used_weight(self) -> Tensor:
        """A new dense tensor of what convolves."""
        return self._largest().reshape(self.geometry.shape)

    def _largest(self) -> Tensor:
        weights = self.values.detach()
        largest = largest_magnitudes(weights, active_count(weights.numel(), self.sparsity))
        return torch.zeros_like(weights).index_copy_(0, largest, weights[largest])

    def forward(self, input: Tensor) -> Tensor:
        # Sparse in value, dense in gradient.
        straight_through = self.values + (self._largest() - self.values.detach())
        return sparse_conv2d(
            input, straight_through, self.mask, self.geometry, bias=self.bias, cache=self.cache
        )


def use_swat(model: nn.Module, sparsity: float, except_for: Collection[str]) -> None:
    """Make the convolutions of a model whose weights are all active convolve with the largest ones only."""
    for name, layer in sparse_layers(model).items():
        if name not in except_for and type(layer) is SparseConv2d:
            layer.__class__ = SwatConv2d
            layer.sparsity = sparsity  # type: ignore[assignment]
