"""The facts of a network that the paper's formulas need, and nothing else of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from fedmef.costs.flops import layer_passes
from fedmef.nn import dense_by_default


@dataclass(frozen=True)
class Layer:
    """A convolution or a linear layer.

    Attributes:
        shape: of the weight, out first.
        positions: outputs of one image that each weight has a part in.
        inputs: elements of one image's input.
        sparse: whether a sparse method prunes its weights; the first, depthwise ones and the classifier stay.
        pruned_input: whether activation pruning reaches its input; it spares the first and the classifier.
    """

    shape: tuple[int, ...]
    positions: int
    inputs: int
    sparse: bool
    pruned_input: bool

    @property
    def size(self) -> int:
        """Weights, dense."""
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        """Of the weight as a matrix: a row is a filter."""
        return self.shape[0]

    @property
    def columns(self) -> int:
        """Of the weight as a matrix."""
        return self.size // self.rows


@dataclass(frozen=True)
class Network:
    """A dense network, before a method prepares it.

    Attributes:
        layers: by name, in order of execution.
        other_parameters: biases and normalisation, which stay dense.
        pooled: elements of one image that max-pooling takes in.
    """

    layers: Mapping[str, Layer]
    other_parameters: int
    pooled: int

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.other_parameters + sum(layer.size for layer in self.layers.values())

    @property
    def multiply_adds(self) -> int:
        """Of one image's forward pass."""
        return sum(layer.size * layer.positions for layer in self.layers.values())

    @property
    def activations(self) -> int:
        """Elements of one image that count as activations: what convolutions and max-pooling take in.

        The paper does not say what counts. This was chosen because, of the readings that we tried, it comes
        nearest to its three numbers for ResNet18 (`docs/costs.md`): a fit, not something that the text says.
        """
        *convolutions, _classifier = self.layers.values()
        return self.pooled + sum(layer.inputs for layer in convolutions)


def network_facts(network: nn.Module, image_shape: Sequence[int]) -> Network:
    """The facts of a plain dense network, found by one forward pass; the network stays as it is."""
    pooled = 0

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal pooled
        pooled += inputs[0].numel()

    pools = [module for module in network.modules() if isinstance(module, nn.MaxPool2d)]
    hooks = [module.register_forward_hook(note) for module in pools]
    try:
        passes = layer_passes(network, image_shape)
    finally:
        for hook in hooks:
            hook.remove()
    dense = set(dense_by_default(network))
    ends = {next(iter(passes)), next(reversed(passes))}
    layers = {
        name: Layer(taken.shape, taken.positions, taken.inputs, name not in dense, name not in ends)
        for name, taken in passes.items()
    }
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return Network(layers, parameters - sum(layer.size for layer in layers.values()), pooled)
