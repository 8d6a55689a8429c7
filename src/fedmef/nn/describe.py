"""PyTorch's modules as operations of a network: what each is called as data."""

from typing import Any

import torch
from torch import Tensor, nn

from fedmef.errors import UserError
from fedmef.nn import batchnorm, pooling, relu
from fedmef.nn.convolution import CachePolicy
from fedmef.nn.layers import SparseConv2d, SparseLinear, symmetric_padding
from fedmef.nn.module import CACHES, FLOATS
from fedmef.nn.pooling import pair
from fedmef.nn.swat import SwatConv2d
from fedmef.sparsity.operations import (
    AdaptiveAveragePool,
    ArraySpec,
    AveragePool,
    BatchNorm,
    Cache,
    Convolution,
    Flatten,
    Linear,
    MaxPool,
    Normalization,
    Operation,
    ReLU,
    Shape,
)

_FLOAT_NAMES = {kind: name for name, kind in FLOATS.items()}
_CACHE_NAMES = {kind: name for name, kind in CACHES.items()}


def describe(
    module: nn.Module,
    name: str,
    inputs: tuple[str, ...],
    module_name: str,
    taken: Shape,
    compact: bool = False,
) -> Operation | None:
    """The operation of a module that takes a batch of this shape; None for one that has no description."""
    kind = type(module)
    common: dict[str, Any] = {"name": name, "inputs": inputs}
    if kind in (SparseConv2d, SparseLinear, SwatConv2d):
        return _sparse(module, common, module_name, taken)  # type: ignore[arg-type]
    if kind is nn.Conv2d or kind is nn.Linear:
        return _dense(module, common, module_name, taken)
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        return _batchnorm(module, common, module_name, taken)
    if kind in (nn.ReLU, nn.ReLU6, relu.ReLU, relu.ReLU6):
        upper = 6.0 if kind in (nn.ReLU6, relu.ReLU6) else None
        return ReLU(**common, upper=upper, compact=compact or kind in (relu.ReLU, relu.ReLU6))
    if isinstance(module, nn.Flatten) and kind is nn.Flatten:
        return Flatten(**common) if (module.start_dim, module.end_dim) == (1, -1) else None
    return _pool(module, common, compact) if len(taken) == 4 else None


def _sparse(module: SparseConv2d, common: dict[str, Any], module_name: str, taken: Shape) -> Operation | None:
    geometry = module.geometry
    constants = geometry.normalization and Normalization(**vars(geometry.normalization))
    common |= {
        "module": module_name,
        "dtype": float_name(module.values, f"{module_name}.values"),
        "sparse": True,
        "bias": module.bias is not None,
        "gain": module.gain is not None,
        "normalization": constants,
        "cache": _cache(module.cache),
    }
    if isinstance(module, SparseLinear):
        return Linear(**common, shape=geometry.shape[:2]) if len(taken) == 2 else None
    if isinstance(module, SwatConv2d):
        common["swat"] = module.sparsity
    return Convolution(
        **common,
        shape=geometry.shape,
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        groups=geometry.groups,
    )


def _dense(module: nn.Module, common: dict[str, Any], module_name: str, taken: Shape) -> Operation | None:
    assert isinstance(module, nn.Conv2d | nn.Linear)
    if "weight" not in module._parameters:  # parametrised: its state has other names
        return None
    common |= {
        "module": module_name,
        "dtype": float_name(module.weight, f"{module_name}.weight"),
        "bias": module.bias is not None,
    }
    if isinstance(module, nn.Linear):
        shape = (module.out_features, module.in_features)
        return Linear(**common, shape=shape) if len(taken) == 2 else None
    if module.padding_mode != "zeros" or len(taken) != 4 or (padding := symmetric_padding(module)) is None:
        return None
    return Convolution(
        **common,
        shape=tuple(module.weight.shape),  # type: ignore[arg-type]
        stride=pair(module.stride),  # type: ignore[arg-type]
        padding=padding,
        dilation=pair(module.dilation),  # type: ignore[arg-type]
        groups=module.groups,
    )


def _batchnorm(
    module: nn.BatchNorm1d | nn.BatchNorm2d, common: dict[str, Any], module_name: str, taken: Shape
) -> Operation | None:
    ours = (nn.BatchNorm1d, nn.BatchNorm2d, batchnorm.BatchNorm1d, batchnorm.BatchNorm2d)
    plain = type(module) in ours and module.momentum is not None and module.track_running_stats
    if not plain or len(taken) not in (2, 4) or module.running_mean is None:
        return None
    return BatchNorm(
        **common,
        module=module_name,
        channels=module.num_features,
        epsilon=module.eps,
        momentum=module.momentum,  # type: ignore[arg-type]
        affine=module.affine,
        dtype=float_name(module.running_mean, f"{module_name}.running_mean"),
    )


def _pool(module: nn.Module, common: dict[str, Any], compact: bool) -> Operation | None:
    kind = type(module)
    common |= {"compact": compact or kind.__module__ == pooling.__name__}
    if kind in (nn.MaxPool2d, pooling.MaxPool2d) and not module.return_indices:
        assert isinstance(module, nn.MaxPool2d)
        return MaxPool(
            **common,
            kernel=pair(module.kernel_size),
            stride=pair(module.stride or module.kernel_size),
            padding=pair(module.padding),
            dilation=pair(module.dilation),
            ceil_mode=module.ceil_mode,
        )
    if kind in (nn.AvgPool2d, pooling.AvgPool2d):
        assert isinstance(module, nn.AvgPool2d)
        return AveragePool(
            **common,
            kernel=pair(module.kernel_size),
            stride=pair(module.stride or module.kernel_size),
            padding=pair(module.padding),
            ceil_mode=module.ceil_mode,
            count_padding=module.count_include_pad,
            divisor=module.divisor_override,
        )
    if kind in (nn.AdaptiveAvgPool2d, pooling.AdaptiveAvgPool2d):
        size = module.output_size
        if isinstance(size, int) or all(isinstance(part, int) for part in size):  # type: ignore[union-attr]
            return AdaptiveAveragePool(**common, size=pair(size))  # type: ignore[arg-type]
    return None


def _cache(policy: CachePolicy) -> Cache:
    if policy.dtype not in _CACHE_NAMES:
        raise UserError(f"cache_dtype = {policy.dtype}: a federation knows float16 and bfloat16")
    return Cache(policy.sparsity, _CACHE_NAMES[policy.dtype])  # type: ignore[arg-type]


def float_name(tensor: Tensor, name: str) -> Any:
    """What a network calls a tensor's type."""
    if tensor.dtype not in _FLOAT_NAMES:
        raise UserError(f"{name} is of type {tensor.dtype}: fedmef trains float32; model.float() converts it")
    return _FLOAT_NAMES[tensor.dtype]


def array_spec(name: str, tensor: Tensor, model: nn.Module) -> ArraySpec:
    """What an array of an opaque operation must be."""
    shape = tuple(tensor.shape)
    if tensor.is_floating_point():
        trained = name in dict(model.named_parameters(remove_duplicate=False))
        return ArraySpec(shape, float_name(tensor, name), "weight" if trained else "statistic")
    if tensor.dtype not in (torch.int64, torch.uint8):
        raise UserError(f"{name} is of type {tensor.dtype}: fedmef knows float32, int64 and uint8")
    return ArraySpec(shape, "int64" if tensor.dtype == torch.int64 else "uint8", "counter")
