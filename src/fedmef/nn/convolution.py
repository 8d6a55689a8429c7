"""The sparse convolution itself: one function, forward and backward, on (input, values, mask, geometry).

A dense weight, and a dense gradient of it, exist only while one of the two passes of one layer runs.
"""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakTensorKeyDictionary

from fedmef.nn.bits import active_positions
from fedmef.nn.cache import PrunedActivation
from fedmef.nn.layout import from_memory_order, in_memory_order, is_channels_last
from fedmef.nn.normalization import FilterNormalization, StandardizedFilters

# Receives a layer's dense gradient for the pruned positions (zero at the active ones) and must not keep it.
GrowthObserver = Callable[[Tensor], None]


@dataclass(frozen=True)
class Geometry:
    """Everything about a convolution that is not a tensor."""

    shape: tuple[int, int, int, int]  # [out, in/groups, kh, kw]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    normalization: FilterNormalization | None = None

    @property
    def size(self) -> int:
        """How many weights the layer has, active or pruned."""
        return self.shape[0] * self.filter_size

    @property
    def filter_size(self) -> int:
        """How many weights one filter has."""
        return self.shape[1] * self.shape[2] * self.shape[3]


@dataclass(frozen=True)
class CachePolicy:
    """How the input is kept for the backward pass: exactly at `sparsity` 0, otherwise pruned."""

    sparsity: float = 0.0
    dtype: torch.dtype | None = None


# What is kept of the inputs that are alive, so that several convolutions of one input keep it once.
_PRUNED: MutableMapping[Tensor, tuple[int, CachePolicy, PrunedActivation]] = WeakTensorKeyDictionary()


def sparse_conv2d(
    input: Tensor,
    values: Tensor,
    mask: Tensor,
    geometry: Geometry,
    *,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
    cache: CachePolicy = CachePolicy(),  # noqa: B008  (frozen)
    observe_growth: GrowthObserver | None = None,
) -> Tensor:
    """Convolve `input` [n, in, h, w] with sparse filters, given by active `values` and a packed `mask`.

    The gradient for the input is exact at any cache sparsity; those for `values` and `gain` use what is kept.
    """
    if torch.is_autocast_enabled(input.device.type):
        input = input.to(torch.get_autocast_dtype(input.device.type))
    if torch.is_grad_enabled() and (values.requires_grad or input.requires_grad):
        output: Tensor = _SparseConvolution.apply(  # type: ignore[no-untyped-call]
            input, values, mask, gain, bias, geometry, cache, observe_growth
        )
        return output
    return _convolve(input, SparseWeight(values, mask, geometry, gain).dense(), bias, geometry)


class SparseWeight:
    """A layer's weight on its way from active values to the dense tensor that convolves, and back."""

    def __init__(
        self,
        values: Tensor,
        mask: Tensor,
        geometry: Geometry,
        gain: Tensor | None,
        statistics: Tensor | None = None,
    ) -> None:
        self.values, self.geometry, self.gain = values, geometry, gain
        # None when every position is active
        self.positions = None if values.numel() == geometry.size else active_positions(mask, geometry.size)
        self.lengths = self._filter_lengths()
        self.standardized: StandardizedFilters | None = None
        if geometry.normalization is not None:
            self.standardized = geometry.normalization.standardize(values, self.lengths, statistics)

    def dense(self) -> Tensor:
        """The weight that convolves: normalised, with its gain, zero at pruned positions."""
        effective = self.values if self.standardized is None else self.standardized.values
        if self.gain is not None:
            effective = effective * self.gain.repeat_interleave(self.lengths)
        if self.positions is None:
            return effective.view(self.geometry.shape)
        dense = torch.zeros(self.geometry.size, dtype=effective.dtype, device=effective.device)
        return dense.scatter_(0, self.positions, effective).view(self.geometry.shape)

    def backward(self, dense_gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients for `values` and `gain`, given the one for the dense weight."""
        gradient = dense_gradient.reshape(-1)
        if self.positions is not None:
            gradient = gradient.index_select(0, self.positions)
        gain_gradient = None
        if self.gain is not None:
            before_gain = self.values if self.standardized is None else self.standardized.values
            gain_gradient = torch.segment_reduce(gradient * before_gain, "sum", lengths=self.lengths)
            gradient = gradient * self.gain.repeat_interleave(self.lengths)
        if self.standardized is not None:
            gradient = self.standardized.backward(gradient)
        return gradient, gain_gradient

    def pruned_gradient(self, dense_gradient: Tensor) -> Tensor:
        """What a pruned weight's gradient would be if it were active: θ̂'s times its filter's scale.

        Zero at active positions. May overwrite its argument; one of another layout is copied.
        """
        if self.positions is None:
            return torch.zeros_like(dense_gradient).reshape(-1)
        gradient = dense_gradient.reshape(self.geometry.shape[0], -1)
        if self.standardized is not None:
            gradient.mul_(self.standardized.growth_scale.unsqueeze(1))
        if self.gain is not None:
            gradient.mul_(self.gain.unsqueeze(1))
        return gradient.view(-1).index_fill_(0, self.positions, 0.0)

    def _filter_lengths(self) -> Tensor:
        """`n_i`: active weights per filter."""
        filters, filter_size = self.geometry.shape[0], self.geometry.filter_size
        if self.positions is None:
            return torch.full((filters,), filter_size, device=self.values.device)
        edges = torch.arange(filters + 1, device=self.values.device) * filter_size
        return torch.searchsorted(self.positions, edges).diff()


class _SparseConvolution(torch.autograd.Function):
    """Saves the values, the packed mask, statistics of the filters and the pruned input: nothing dense but an
    unpruned input.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        values: Tensor,
        mask: Tensor,
        gain: Tensor | None,
        bias: Tensor | None,
        geometry: Geometry,
        cache: CachePolicy,
        observe_growth: GrowthObserver | None,
    ) -> Tensor:
        kept: tuple[Tensor, ...] = ()
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[3]:
            kept = (input,)
            if cache.sparsity > 0:
                ctx.channels_last = is_channels_last(input)
                ordered = in_memory_order(input, ctx.channels_last)
                ctx.ordered_shape = ordered.shape
                pruned = _prune_once(input, ordered, cache)
                kept = (pruned.bits, pruned.values)
        weight = SparseWeight(values, mask, geometry, gain)
        statistics = None if weight.standardized is None else weight.standardized.statistics
        ctx.save_for_backward(values, mask, gain, statistics, *kept)
        ctx.geometry, ctx.observe_growth = geometry, observe_growth
        ctx.input_shape, ctx.has_bias = input.shape, bias is not None
        dense = weight.dense()
        del weight
        return _convolve(input, dense, bias, geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        values, mask, gain, statistics, *kept = ctx.saved_tensors
        grad_input = grad_values = grad_gain = grad_bias = None
        # One after the other: the restored input and the dense gradient are gone before the dense weight and
        # the gradient for the input come. Each needs only the shape of what the other one works on.
        if kept:
            restored = _kept_input(ctx, kept, grad_output.dtype)
            dense_gradient = _weight_gradient(grad_output, restored, ctx.geometry).to(values.dtype)
            del restored
        weight = SparseWeight(values, mask, ctx.geometry, gain, statistics)
        if kept:
            grad_values, grad_gain = weight.backward(dense_gradient)
            if ctx.observe_growth is not None:
                ctx.observe_growth(weight.pruned_gradient(dense_gradient))
            del dense_gradient
        if ctx.needs_input_grad[0]:
            dense = weight.dense().to(grad_output.dtype)
            del weight
            grad_input = _input_gradient(grad_output, ctx.input_shape, dense, ctx.geometry)
        if ctx.has_bias and ctx.needs_input_grad[4]:
            grad_bias = grad_output.sum((0, 2, 3))
        return grad_input, grad_values, None, grad_gain, grad_bias, None, None, None


def _prune_once(input: Tensor, ordered: Tensor, cache: CachePolicy) -> PrunedActivation:
    """What is kept of an input; a shortcut's convolution shares it with the block's first one."""
    if input.grad_fn is None:  # a batch may be written over unseen, or live long
        return PrunedActivation.prune(ordered, cache.sparsity, cache.dtype)
    known = _PRUNED.get(input)
    if known is None or known[:2] != (input._version, cache):
        pruned = PrunedActivation.prune(ordered, cache.sparsity, cache.dtype)
        known = _PRUNED[input] = (input._version, cache, pruned)
    return known[2]


def _kept_input(ctx: Any, kept: list[Tensor], dtype: torch.dtype) -> Tensor:
    """What is left of the input: all of it, or its largest magnitudes."""
    if len(kept) == 1:
        return kept[0]
    return from_memory_order(PrunedActivation(*kept).restore(ctx.ordered_shape, dtype), ctx.channels_last)


def _convolve(input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    bias = None if bias is None else bias.to(input.dtype)
    weight = weight.to(input.dtype)
    return F.conv2d(
        input, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups
    )


def _weight_gradient(grad_output: Tensor, input: Tensor, geometry: Geometry) -> Tensor:
    weight = input.new_empty(1).expand(geometry.shape)
    if _reads_shapes_only(input, weight, geometry):
        weight = _stand_in(geometry.shape, input)
    return _convolution_backward(grad_output, input, weight, geometry, [False, True, False])[1]


def _input_gradient(grad_output: Tensor, shape: torch.Size, weight: Tensor, geometry: Geometry) -> Tensor:
    input = weight.new_empty(1).expand(shape)
    if _reads_shapes_only(input, weight, geometry):
        input = _stand_in(shape, grad_output)
    return _convolution_backward(grad_output, input, weight, geometry, [True, False, False])[0]


def _reads_shapes_only(input: Tensor, weight: Tensor, geometry: Geometry) -> bool:
    """Whether the kernel never looks at a tensor of which it only needs the shape; some copy it first."""
    select = getattr(torch._C, "_select_conv_backend", None)  # no public function says so
    if select is None:
        return False
    stride, padding, dilation, groups = geometry.stride, geometry.padding, geometry.dilation, geometry.groups
    backend = select(input, weight, None, stride, padding, dilation, False, (0, 0), groups)
    return bool(backend.name == "Mkldnn")


def _stand_in(shape: Sequence[int], other: Tensor) -> Tensor:
    """A tensor without memory, for its shape only, of a layout that is not copied to that of the other."""
    layout = torch.channels_last if is_channels_last(other) else torch.contiguous_format
    tensor = torch.empty(tuple(shape), dtype=other.dtype, device=other.device, memory_format=layout)
    tensor.untyped_storage().resize_(0)
    return tensor


def _convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    geometry: Geometry,
    wanted: list[bool],
) -> tuple[Tensor, Tensor]:
    """The gradients for the input and for the weight; one that is not wanted is None."""
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
        grad_output,
        input,
        weight,
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        False,
        (0, 0),
        geometry.groups,
        wanted,
    )
    return gradients[:2]
