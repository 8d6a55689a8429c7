"""A network as data, executed by PyTorch: the inverse of `fedmef.nn.export`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.errors import UserError
from fedmef.nn import pooling, relu
from fedmef.nn.batchnorm import BatchNorm1d, BatchNorm2d
from fedmef.nn.convolution import CachePolicy, Geometry
from fedmef.nn.features import layer_norm, plain_layer_norm, scale
from fedmef.nn.layers import SparseConv2d, SparseLinear, sparse_layers
from fedmef.nn.layout import fastest_layout
from fedmef.nn.normalization import FilterNormalization
from fedmef.nn.swat import SwatConv2d
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import check_state
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import (
    AdaptiveAveragePool,
    Add,
    AveragePool,
    BatchNorm,
    Cache,
    Concatenate,
    Convolution,
    Flatten,
    Layer,
    LayerNorm,
    Linear,
    MaxPool,
    Operation,
    ReLU,
    Scale,
)

FLOATS = {"float32": torch.float32, "float64": torch.float64}
CACHES = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}

Function = Callable[..., Tensor]


class NetworkModule(nn.Module):
    """Executes a network's operations one after the other. Modules and parameters have the network's names.

    It takes images of uint8 as they are; floating-point ones count as normalised already. A `plain` one has
    no backward pass of our own anywhere, for whoever follows what it does, such as `torch.export`.
    """

    def __init__(self, network: Network, *, plain: bool = False) -> None:
        super().__init__()
        if network.opaque is not None:
            raise UserError(
                f"this network needs its own PyTorch code: '{network.opaque.name}' "
                f"({network.opaque.description}) cannot be described as data"
            )
        self.network = network
        modules: dict[str, nn.Module] = {}
        self._steps: list[tuple[Operation, Function]] = []
        for operation in network.operations:
            if isinstance(operation, Layer | BatchNorm):
                if operation.module not in modules:
                    modules[operation.module] = _build(operation, len(network.shapes[operation.name]))
                    _place(self, operation.module, modules[operation.module])
                self._steps.append((operation, modules[operation.module]))
            else:
                self._steps.append((operation, _function(operation, plain)))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in network.frozen)
        self._last_uses = _last_uses(network)
        self.layout = fastest_layout(
            layer.shape[1]
            for layer in network.layers.values()
            if isinstance(layer, Convolution) and layer.shape[2:] == (1, 1) and max(layer.stride) > 1
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, classes] of images [n, channels, height, width]."""
        if images.dtype == torch.uint8:
            images = normalize(images, self.network.input, self.layout)
        results = {INPUT: images.contiguous(memory_format=self.layout)}
        del images
        for operation, run in self._steps:
            results[operation.name] = run(*(results[name] for name in operation.inputs))
            for name in self._last_uses[operation.name]:
                del results[name]
        return results[self.network.operations[-1].name]


@torch.no_grad()
def load_state(module: nn.Module, network: Network, state: Mapping[str, Array]) -> None:
    """Make a module of this network have a state, whose layers may have other numbers of active weights."""
    check_state(network, state)
    for name, layer in sparse_layers(module).items():
        count = state[f"{name}.values"].size
        if count != layer.active_count:
            layer.values = nn.Parameter(layer.values.new_zeros(count), layer.values.requires_grad)
    tensors = module.state_dict()
    for name in network.arrays:
        tensors[name].copy_(torch.from_numpy(np.array(state[name])))  # a copy: a message cannot be written to


def normalize(images: Tensor, how: Input, layout: torch.memory_format) -> Tensor:
    """uint8 [n, C, H, W] → a network's input, float32, in this layout."""
    scale, shift = (
        torch.from_numpy(constant)[:, None, None].to(images.device) for constant in how.scale_and_shift()
    )
    return images.to(torch.float32, memory_format=layout).mul_(scale).sub_(shift)


def _last_uses(network: Network) -> dict[str, list[str]]:
    """For every operation, the results that nobody needs after it."""
    last = {name: operation.name for operation in network.operations for name in operation.inputs}
    final = network.operations[-1].name
    uses: dict[str, list[str]] = {operation.name: [] for operation in network.operations}
    for name, user in last.items():
        if name != final:
            uses[user].append(name)
    return uses


def _place(root: nn.Module, name: str, module: nn.Module) -> None:
    """Add a module under its dotted name, with empty modules on the way to it."""
    *path, last = name.split(".")
    for part in path:
        child = root._modules.setdefault(part, nn.Module())
        assert child is not None
        root = child
    root._modules[last] = module  # add_module() refuses names such as 'network', which we have as well


def _build(operation: Layer | BatchNorm, dimensions: int) -> nn.Module:
    if isinstance(operation, BatchNorm):
        kind = BatchNorm2d if dimensions == 3 else BatchNorm1d
        return kind(
            operation.channels,
            operation.epsilon,
            operation.momentum,
            operation.affine,
            dtype=FLOATS[operation.dtype],
        )
    return _sparse_layer(operation) if operation.sparse else _dense_layer(operation)


def _sparse_layer(operation: Layer) -> SparseConv2d:
    kind = SparseLinear if isinstance(operation, Linear) else SwatConv2d if operation.swat else SparseConv2d
    normalization = None
    if operation.normalization is not None:
        normalization = FilterNormalization(**vars(operation.normalization))
    shape = (*operation.weight_shape, 1, 1)[:4]
    geometry = Geometry(shape, **_convolving(operation), normalization=normalization)  # type: ignore[arg-type]
    layer = kind.empty(
        geometry,
        cache_policy(operation.cache),
        gain=operation.gain,
        bias=operation.bias,
        dtype=FLOATS[operation.dtype],
    )
    if isinstance(layer, SwatConv2d):
        layer.sparsity = operation.swat
    return layer


def _dense_layer(operation: Layer) -> nn.Module:
    """Without initial values, which would be drawn from the user's generator: a state is loaded."""
    out, inputs, *kernel = operation.weight_shape
    layer: nn.Linear | nn.Conv2d
    if isinstance(operation, Linear):
        layer = nn.Linear(inputs, out, operation.bias, device="meta")
    else:
        geometry = _convolving(operation)
        channels = inputs * geometry["groups"]
        layer = nn.Conv2d(
            channels, out, (kernel[0], kernel[1]), **geometry, bias=operation.bias, device="meta"
        )
    kind = FLOATS[operation.dtype]
    layer.weight = nn.Parameter(torch.empty(operation.weight_shape, dtype=kind))
    if operation.bias:
        layer.bias = nn.Parameter(torch.empty(out, dtype=kind))
    return layer


def _convolving(operation: Layer) -> dict[str, Any]:
    if not isinstance(operation, Convolution):
        return {}
    return {name: getattr(operation, name) for name in ("stride", "padding", "dilation", "groups")}


def cache_policy(cache: Cache) -> CachePolicy:
    """How PyTorch keeps an input."""
    return CachePolicy(cache.sparsity, CACHES[cache.dtype])


def _function(operation: Operation, plain: bool) -> Function:  # noqa: PLR0911
    match operation:
        case ReLU(upper=None):
            return relu.relu if operation.compact else F.relu
        case ReLU(upper=float() as upper):
            if operation.compact:
                return partial(relu.clamp, upper=upper)
            return partial(F.hardtanh, min_val=0.0, max_val=upper)  # what F.relu6 is
        case MaxPool():
            shape = operation.kernel, operation.stride, operation.padding, operation.dilation
            pool = pooling.max_pool2d if operation.compact else F.max_pool2d
            return lambda images: pool(images, *shape, operation.ceil_mode)
        case AveragePool():
            shape_and_rules = operation.kernel, operation.stride, operation.padding, operation.ceil_mode
            average = pooling.avg_pool2d if operation.compact else F.avg_pool2d
            return lambda images: average(
                images, *shape_and_rules, operation.count_padding, operation.divisor
            )
        case AdaptiveAveragePool():
            adaptive = pooling.adaptive_avg_pool2d if operation.compact else F.adaptive_avg_pool2d
            return lambda images: adaptive(images, operation.size)
        case LayerNorm(epsilon=epsilon):
            if plain:
                return lambda features: plain_layer_norm(features, epsilon)[0]
            return partial(layer_norm, epsilon=epsilon)
        case Scale(factor=factor):
            return partial(torch.mul, other=factor) if plain else partial(scale, factor=factor)
        case Add():
            return torch.add
        case Concatenate():
            return lambda *inputs: torch.cat(inputs, 1)
        case Flatten():
            return partial(torch.flatten, start_dim=1)
    raise UserError(f"PyTorch has no operation '{operation.kind}'")
