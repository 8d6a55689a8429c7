"""The way back: a sparse network as PyTorch's own layers, with every normalisation of weights folded in.

What it computes stays the same. The result is for inference, for `torch.compile` and `torch.export`, for ONNX
and for whoever has no fedmef.
"""

from collections import OrderedDict
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedmef.nn import pooling, relu
from fedmef.nn.batchnorm import BatchNorm1d, BatchNorm2d
from fedmef.nn.dropout import Dropout
from fedmef.nn.features import EPSILON, feature_norm, plain_layer_norm, remove_feature_norms
from fedmef.nn.functionals import stop_saving
from fedmef.nn.layers import SparseConv2d, SparseLinear, sparse_layers
from fedmef.nn.module import NetworkModule, load_state
from fedmef.nn.own_layer import own_sparse, with_own_weights
from fedmef.nn.smooth import Smooth
from fedmef.nn.swat import SwatConv2d
from fedmef.sparsity.model import Model
from fedmef.sparsity.operations import Cache, Layer, Operation


class NormalizedFeatures(nn.Module):
    """What `sparsify(normalize=True)` does to a classifier's input."""

    def forward(self, input: Tensor) -> Tensor:
        return plain_layer_norm(input, EPSILON)[0]


def densify(model: nn.Module) -> nn.Module:
    """A copy of a network with plain `nn.Conv2d`, `nn.Linear`, `nn.ReLU` and so on.

    A classifier whose input is normalised becomes `nn.Sequential(NormalizedFeatures(), nn.Linear(...))`, and
    its weights take over the scale of the logits.
    """
    if isinstance(model, NetworkModule):
        state = {name: tensor.detach().cpu().numpy() for name, tensor in model.state_dict().items()}
        dense = dense_model(Model(model.network, state))
        module = NetworkModule(dense.network, plain=True)
        load_state(module, dense.network, dense.state)
        device = next((tensor.device for tensor in model.state_dict().values()), torch.device("cpu"))
        return module.train(model.training).to(device)
    holder = nn.ModuleList([deepcopy(model)])  # the model itself may be a layer
    stop_saving(holder[0])
    for layer in list(holder.modules()):
        if (sparse := own_sparse(layer)) is not None:
            with_own_weights(layer, _plain_layer(sparse))
    for name, layer in list(holder.named_modules(remove_duplicate=False)):
        if name and (plain := _plain(layer)) is not None:
            parent, _, last = name.rpartition(".")
            setattr(holder.get_submodule(parent), last, plain)
    return holder[0]


def dense_model(model: Model) -> Model:
    """The same of a network as data: no layer is sparse, and none normalises its weights."""
    if not model.network.sparse_layers:
        return model
    module = NetworkModule(model.network)
    load_state(module, model.network, model.state)
    network = replace(
        model.network,
        operations=tuple(map(_dense_operation, model.network.operations)),
        frozen=(),
    )
    state = {name: array for name, array in model.state.items() if name in network.arrays}
    for name, layer in sparse_layers(module).items():
        shape = network.layers[name].weight_shape
        state[f"{name}.weight"] = _weight(layer).reshape(shape).numpy()
        if layer.bias is not None:
            state[f"{name}.bias"] = layer.bias.detach().numpy()
    return Model(network, state)


def _dense_operation(operation: Operation) -> Operation:
    if isinstance(operation, Layer):
        return replace(operation, sparse=False, gain=False, normalization=None, cache=Cache(), swat=0.0)
    return replace(operation, compact=False) if hasattr(operation, "compact") else operation  # type: ignore[call-arg]


def _weight(layer: SparseConv2d) -> Tensor:
    """What really convolves."""
    return layer.used_weight() if isinstance(layer, SwatConv2d) else layer.dense_weight()


def _plain(module: nn.Module) -> nn.Module | None:  # noqa: PLR0911
    match module:
        case SparseConv2d():
            return _normalized(module, _plain_layer(module))
        case nn.Linear() | nn.Conv2d():
            return _normalized(module, module) if feature_norm(module) else None
        case relu.ReLU6():
            return nn.ReLU6(module.inplace)
        case relu.ReLU():
            return nn.ReLU(module.inplace)
        case relu.LeakyReLU():
            return _of_class(module, nn.LeakyReLU)
        case Smooth():
            return _smooth(module)
        case Dropout():
            return _of_class(module, nn.Dropout)
        case pooling.MaxPool2d():
            return _of_class(module, nn.MaxPool2d)
        case pooling.AvgPool2d():
            return _of_class(module, nn.AvgPool2d)
        case pooling.AdaptiveAvgPool2d():
            return _of_class(module, nn.AdaptiveAvgPool2d)
        case BatchNorm2d():
            return _of_class(module, nn.BatchNorm2d)
        case BatchNorm1d():
            return _of_class(module, nn.BatchNorm1d)
    return None


def _smooth(module: Smooth) -> nn.Module:
    if isinstance(getattr(module.activation, "inplace", None), bool):
        module.activation.inplace = module.inplace  # type: ignore[assignment]
    return module.activation


def _of_class(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """Ours are subclasses of PyTorch's that keep less."""
    module.__class__ = kind
    return module


@torch.no_grad()
def _plain_layer(sparse: SparseConv2d) -> nn.Linear | nn.Conv2d:
    weight = _weight(sparse)
    filters, channels, *kernel = weight.shape
    layer: nn.Linear | nn.Conv2d
    if isinstance(sparse, SparseLinear):
        layer = nn.Linear(channels, filters, device="meta")
        weight = weight.flatten(1)
    else:
        how = sparse.geometry
        layer = nn.Conv2d(
            channels * how.groups,
            filters,
            (kernel[0], kernel[1]),
            how.stride,
            how.padding,
            how.dilation,
            how.groups,
            device="meta",
        )
    layer.weight = nn.Parameter(weight, sparse.values.requires_grad)
    layer.bias = None if sparse.bias is None else nn.Parameter(sparse.bias.clone(), sparse.bias.requires_grad)
    return layer.train(sparse.training)


@torch.no_grad()
def _normalized(module: nn.Module, layer: nn.Linear | nn.Conv2d) -> nn.Module:
    """The plain layer of a module, behind the normalisation of its features if it has one."""
    norm = feature_norm(module)
    if norm is None:
        return layer
    remove_feature_norms(layer)
    for parameter in layer.parameters():
        parameter.mul_(norm.scale)
    return nn.Sequential(OrderedDict(features=NormalizedFeatures(), layer=layer)).train(module.training)
