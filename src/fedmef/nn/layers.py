"""Sparse layers as modules: only active weights are parameters, and the mask is bit-packed.

`state_dict()` is the sparse model: `values` (n_l floats), `mask` (n/8 bytes), and `gain` and `bias` if there
are any. Gradients and optimiser state have n_l entries too.
"""

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from fedmef.errors import FedmefError, UserError
from fedmef.nn.bits import active_positions, count_bits, mask_from_positions
from fedmef.nn.convolution import CachePolicy, Geometry, GrowthObserver, SparseWeight, sparse_conv2d
from fedmef.nn.normalization import FilterNormalization, Scaling
from fedmef.nn.pooling import Size, pair
from fedmef.sparsity.masks import active_count, enliven, packed_size, random_mask


class SparseConv2d(nn.Module):
    """A convolution whose trainable parameter is the vector of its active weights.

    Args:
        sparsity: share of weights that is pruned, at random positions (`generator` decides which).
        normalize: make it NSConv: filters are centred and scaled to norm `gamma`; no BatchNorm is needed.
        gamma: the norm of a normalised filter.
        scaling: "filter", or "paper", nearer to the paper's Eq. 7 (see `fedmef.nn.normalization`).
        affine: with `normalize`, learn a gain per filter; usually together with `bias=True`.
        activation_sparsity: share of the input that is forgotten before it is kept for the backward pass.
        cache_dtype: how the kept part is stored (default: as it is); `torch.float16` halves it.
        generator: NumPy's; by default PyTorch's own decides, as for any layer.

    The other arguments are those of `nn.Conv2d`; `padding_mode` is always "zeros".
    """

    values: nn.Parameter
    mask: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        sparsity: float = 0.9,
        normalize: bool = False,
        gamma: float = 1.0,
        scaling: Scaling = "filter",
        affine: bool = False,
        activation_sparsity: float = 0.0,
        cache_dtype: torch.dtype | None = None,
        generator: np.random.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if in_channels % groups or out_channels % groups:
            raise UserError(f"groups = {groups}: must divide {in_channels} and {out_channels} channels")
        channels = in_channels // groups
        geometry = Geometry(
            (out_channels, channels, *pair(kernel_size)),
            pair(stride),
            pair(padding),
            pair(dilation),
            groups,
            _normalization(channels, normalize, gamma, scaling, affine),
        )
        cache = _cache(activation_sparsity, cache_dtype)
        self._build(geometry, cache, gain=affine, bias=bias, dtype=dtype, device=device)
        if generator is None:
            generator = np.random.default_rng(int(torch.randint(2**62, ())))
        count = active_count(geometry.size, sparsity)
        packed = random_mask(geometry.size, count, generator)
        packed = enliven(packed, (out_channels, geometry.size // out_channels), generator)
        mask = torch.from_numpy(packed).to(device)
        # The fan-in that a filter really has decides how large its weights start (He et al. 2015).
        deviation = math.sqrt(2 / max(1.0, count / out_channels))
        values = torch.from_numpy(generator.standard_normal(count) * deviation).to(device)
        self.assign(active_positions(mask, geometry.size), values)

    @classmethod
    def empty(
        cls,
        geometry: Geometry,
        cache: CachePolicy,
        *,
        gain: bool,
        bias: bool,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """A layer without active weights, for `assign` to fill; `gain` and `bias` say whether it has them."""
        layer = cls.__new__(cls)
        layer._build(geometry, cache, gain=gain, bias=bias, dtype=dtype, device=device)
        return layer

    @classmethod
    def from_conv2d(
        cls,
        conv: nn.Conv2d,
        mask: Tensor,
        *,
        normalize: bool = False,
        gamma: float = 1.0,
        scaling: Scaling = "filter",
        affine: bool = False,
        activation_sparsity: float = 0.0,
        cache_dtype: torch.dtype | None = None,
    ) -> Self:
        """A sparse layer with the weights that a dense one has at the ones of the packed `mask`."""
        geometry = Geometry(
            tuple(conv.weight.shape),  # type: ignore[arg-type]
            pair(conv.stride),  # type: ignore[arg-type]
            symmetric_padding(conv) or pair(0),
            pair(conv.dilation),  # type: ignore[arg-type]
            conv.groups,
            _normalization(conv.weight.shape[1], normalize, gamma, scaling, affine),
        )
        return cls._taking_over(conv, mask, geometry, affine, _cache(activation_sparsity, cache_dtype))

    def forward(self, input: Tensor) -> Tensor:
        if not input.is_floating_point():
            raise UserError(
                f"a layer takes floats, not {input.dtype}: normalise images as (x / 255 - mean) / std"
            )
        if input.ndim == 3:  # one image, as nn.Conv2d takes it
            return self.forward(input.unsqueeze(0)).squeeze(0)
        return sparse_conv2d(
            input,
            self.values,
            self.mask,
            self.geometry,
            gain=self.gain,
            bias=self.bias,
            cache=self.cache,
            observe_growth=self.observe_growth,
        )

    @property
    def active_count(self) -> int:
        """`n_l`: how many weights are active."""
        return self.values.numel()

    @property
    def density(self) -> float:
        """The share of weights that is active."""
        return self.active_count / self.geometry.size

    def active_positions(self) -> Tensor:
        """The active positions in the flattened weight, ascending; `values` are their weights."""
        return active_positions(self.mask, self.geometry.size)

    def dense_weight(self) -> Tensor:
        """A new dense tensor of the weight that convolves: normalised if the layer normalises."""
        with torch.no_grad():
            return SparseWeight(self.values, self.mask, self.geometry, self.gain).dense().clone()

    @torch.no_grad()
    def assign(self, positions: Tensor, values: Tensor) -> None:
        """Make exactly these positions (ascending) active, with these values.

        Another number of them than before makes `values` a new parameter, which an optimiser must be told.
        """
        if positions.numel() != values.numel():
            raise UserError(f"{positions.numel()} positions but {values.numel()} values")
        if (positions.diff() <= 0).any():
            raise FedmefError("positions are not ascending and distinct")
        self.mask.copy_(mask_from_positions(positions, self.geometry.size))
        if values.numel() == self.values.numel():
            self.values.copy_(values)
        else:
            self.values = nn.Parameter(values.to(self.values.dtype, copy=True), self.values.requires_grad)

    def _build(
        self,
        geometry: Geometry,
        cache: CachePolicy,
        *,
        gain: bool,
        bias: bool,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> None:
        nn.Module.__init__(self)
        self.geometry, self.cache = geometry, cache
        self.observe_growth: GrowthObserver | None = None
        filters, packed = geometry.shape[0], packed_size(geometry.size)
        self.register_buffer("mask", torch.zeros(packed, dtype=torch.uint8, device=device))
        self.values = nn.Parameter(torch.empty(0, dtype=dtype, device=device))
        self.gain = nn.Parameter(torch.ones(filters, dtype=dtype, device=device)) if gain else None
        self.bias = nn.Parameter(torch.zeros(filters, dtype=dtype, device=device)) if bias else None

    @classmethod
    @torch.no_grad()
    def _taking_over(
        cls, dense: nn.Conv2d | nn.Linear, mask: Tensor, geometry: Geometry, affine: bool, cache: CachePolicy
    ) -> Self:
        """The layer with the weights of a dense one at the ones of a packed mask, frozen if they are."""
        weight = dense.weight.detach().reshape(-1)
        has_bias = affine if geometry.normalization else dense.bias is not None
        layer = cls.empty(
            geometry, cache, gain=affine, bias=has_bias, dtype=weight.dtype, device=weight.device
        )
        positions = active_positions(mask.to(weight.device), weight.numel())
        layer.assign(positions, weight[positions])
        layer.values.requires_grad_(dense.weight.requires_grad)
        if dense.bias is not None and layer.bias is not None:
            layer.bias.copy_(dense.bias)
            layer.bias.requires_grad_(dense.bias.requires_grad)
        return layer

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        mask, values = state_dict.get(f"{prefix}mask"), state_dict.get(f"{prefix}values")
        if mask is not None and mask.shape == self.mask.shape:
            expected = self.active_count if values is None else values.numel()
            if count_bits(mask) != expected or active_positions(mask, self.geometry.size).numel() != expected:
                raise UserError(
                    f"{prefix}mask has {count_bits(mask)} active positions but {prefix}values has {expected}"
                    ": they do not belong together"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        out_channels, channels, *kernel = self.geometry.shape
        normalization = self.geometry.normalization
        parts = [
            f"{channels * self.geometry.groups}, {out_channels}, kernel_size={tuple(kernel)}",
            f"stride={self.geometry.stride}, padding={self.geometry.padding}",
            f"active={self.active_count}/{self.geometry.size}",
        ]
        parts += [f"groups={self.geometry.groups}"] if self.geometry.groups > 1 else []
        parts += [f"normalize=True, gamma={normalization.gamma:g}"] if normalization else []
        parts += [f"activation_sparsity={self.cache.sparsity:g}"] if self.cache.sparsity else []
        return ", ".join(parts)


class SparseLinear(SparseConv2d):
    """A fully connected layer of the same kind: a 1x1 convolution on one pixel."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, **options: Any) -> None:
        super().__init__(in_features, out_features, 1, bias=bias, **options)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        mask: Tensor,
        *,
        normalize: bool = False,
        gamma: float = 1.0,
        scaling: Scaling = "filter",
        affine: bool = False,
        activation_sparsity: float = 0.0,
        cache_dtype: torch.dtype | None = None,
    ) -> Self:
        """A sparse layer with the weights that a dense one has at the ones of the packed `mask`."""
        normalization = _normalization(linear.in_features, normalize, gamma, scaling, affine)
        geometry = Geometry((linear.out_features, linear.in_features, 1, 1), normalization=normalization)
        return cls._taking_over(linear, mask, geometry, affine, _cache(activation_sparsity, cache_dtype))

    def forward(self, input: Tensor) -> Tensor:
        pixels = input.reshape(-1, input.shape[-1], 1, 1)
        return super().forward(pixels).view(*input.shape[:-1], self.geometry.shape[0])


def sparse_layers(model: nn.Module) -> dict[str, SparseConv2d]:
    """The sparse layers of a model by name, those with all weights active included."""
    return {name: module for name, module in model.named_modules() if isinstance(module, SparseConv2d)}


def _normalization(
    channels: int, normalize: bool, gamma: float, scaling: Scaling, affine: bool
) -> FilterNormalization | None:
    if affine and not normalize:
        raise UserError("affine = True: only a normalised convolution has a gain; set normalize=True")
    return FilterNormalization(gamma, scaling, channels) if normalize else None


def _cache(sparsity: float, dtype: torch.dtype | None) -> CachePolicy:
    if not 0 <= sparsity < 1:
        raise UserError(f"activation_sparsity = {sparsity}: must be at least 0 and below 1, such as 0.9")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise UserError(f"cache_dtype = {dtype!r}: must be a torch dtype, such as torch.float16")
    return CachePolicy(sparsity, dtype)


def symmetric_padding(conv: nn.Conv2d) -> tuple[int, int] | None:
    """How much a convolution pads on either side; None for one that pads one side more than the other."""
    if conv.padding == "same":
        rows, columns = (
            dilation * (kernel - 1) for dilation, kernel in zip(conv.dilation, conv.kernel_size, strict=True)
        )
        return None if rows % 2 or columns % 2 else (rows // 2, columns // 2)
    return (0, 0) if conv.padding == "valid" else pair(conv.padding)  # type: ignore[arg-type]
