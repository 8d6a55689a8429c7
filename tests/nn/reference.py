"""The sparse convolution as a reader of the paper would write it: dense tensors, loops, autograd."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from fedmef.nn import SparseConv2d
from fedmef.nn.bits import unpack_bits
from fedmef.nn.normalization import FilterNormalization


def active_weights(layer: SparseConv2d) -> Tensor:
    """The mask as booleans [out, in/groups, kh, kw]."""
    return unpack_bits(layer.mask, layer.geometry.size).view(layer.geometry.shape)


def dense_theta(layer: SparseConv2d) -> Tensor:
    """θ with its active values, and noise at the pruned positions, which nothing may look at."""
    theta = torch.randn(layer.geometry.size, dtype=layer.values.dtype)
    theta[layer.active_positions()] = layer.values.detach()
    return theta.view(layer.geometry.shape).requires_grad_()


def normalised(theta: Tensor, active: Tensor, normalization: FilterNormalization) -> Tensor:
    """θ̂_i = γ · m_i ⊙ (θ_i − μ_i) / sqrt(n_i σ_i² + ε), filter by filter."""
    filters = []
    for filter_, is_active in zip(theta, active, strict=True):
        count = int(is_active.sum())
        if count < 2:
            filters.append(filter_ * 0)
            continue
        weights = filter_[is_active]
        variance = weights.var(unbiased=False)
        scale = normalization.gamma / torch.sqrt(count * variance + normalization.epsilon)
        if normalization.scaling == "paper":
            scale = scale * (count / filter_.shape[0]) ** 0.5
        filters.append(scale * is_active * (filter_ - weights.mean()))
    return torch.stack(filters)


def plain_weight(layer: SparseConv2d, theta: Tensor, gain: Tensor | None = None) -> Tensor:
    """The dense weight that convolves, differentiable in θ and the gain."""
    active = active_weights(layer)
    normalization = layer.geometry.normalization
    weight = theta * active if normalization is None else normalised(theta, active, normalization)
    return weight if gain is None else weight * gain.view(-1, 1, 1, 1)


def plain_convolution(layer: SparseConv2d, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """PyTorch's own convolution, with the layer's geometry."""
    geometry = layer.geometry
    return F.conv2d(
        images, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups
    )


@dataclass(frozen=True)
class Case:
    """A layer and images that fit it."""

    layer: SparseConv2d
    images: Tensor


@st.composite
def cases(draw: st.DrawFn, *, normalize: bool | None = None, activation_sparsity: float = 0.0) -> Case:
    """Small layers of every geometry, in double precision."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, filters = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    normalize = draw(st.booleans()) if normalize is None else normalize
    seed = draw(st.integers(0, 9999))
    random = torch.Generator().manual_seed(seed)
    layer = SparseConv2d(
        channels,
        filters,
        kernel,
        draw(st.tuples(st.integers(1, 2), st.integers(1, 3))),
        draw(st.tuples(st.integers(0, 2), st.integers(0, 2))),
        draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        groups,
        draw(st.booleans()),
        sparsity=draw(st.sampled_from([0.0, 0.3, 0.5, 0.8])),
        normalize=normalize,
        gamma=draw(st.sampled_from([1.0, 0.5, 1.7])),
        scaling=draw(st.sampled_from(["filter", "paper"])),
        affine=normalize and draw(st.booleans()),
        activation_sparsity=activation_sparsity,
        generator=np.random.default_rng(seed),
        dtype=torch.float64,
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random, dtype=parameter.dtype))
    images = torch.randn(draw(st.integers(1, 2)), channels, 6, 7, generator=random, dtype=torch.float64)
    return Case(layer, images)
