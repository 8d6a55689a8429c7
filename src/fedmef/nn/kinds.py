"""The kinds of modules that a conversion tells apart."""

import torch
from torch import nn

from fedmef.nn import batchnorm

BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
LAYERS = (nn.Conv2d, nn.Linear)
# Layers of other kinds, which stay as they are; what comes after one of them is no classifier's input.
OTHER_LAYERS = (
    nn.modules.conv._ConvNd,
    nn.Bilinear,
    nn.RNNBase,
    nn.MultiheadAttention,
    torch.jit.ScriptModule,
)
_PLAIN_NORMS = {
    nn.BatchNorm1d.forward,
    nn.BatchNorm2d.forward,
    batchnorm.BatchNorm1d.forward,
    batchnorm.BatchNorm2d.forward,
}


def is_plain_norm(module: nn.Module) -> bool:
    """Whether a BatchNorm does nothing else: its class has PyTorch's own forward(), or ours."""
    return isinstance(module, BATCHNORMS) and type(module).forward in _PLAIN_NORMS


def is_plain_layer(module: nn.Module) -> bool:
    """Whether a layer does nothing else: its class has PyTorch's own forward()."""
    return isinstance(module, LAYERS) and type(module).forward in (nn.Conv2d.forward, nn.Linear.forward)
