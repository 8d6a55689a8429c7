"""The facts of a network that cost estimates need: weights, multiply-adds, elements of activations.

One multiply-add is one FLOP, as in the paper; PyTorch's own `torch.utils.flop_counter` says two. Convolutions
and linear layers count, as the paper has it; normalisation, activations and the loss do not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Network
from fedmef.sparsity.operations import Convolution, Layer, MaxPool


@dataclass(frozen=True)
class LayerFacts:
    """A convolution or a linear layer, all its uses together.

    Attributes:
        shape: of the weight, out first.
        positions: outputs of one image that each weight has a part in.
        inputs: elements of one image's input.
        sparse: whether a sparse method prunes its weights; the first, depthwise ones and the classifier stay.
        pruned_input: whether activation pruning reaches its input; the first and the classifier are left out.
    """

    shape: tuple[int, ...]
    positions: int
    inputs: int
    sparse: bool
    pruned_input: bool

    @property
    def size(self) -> int:
        """Weights, if all are active."""
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        """A row of the weight as a matrix is a filter."""
        return self.shape[0]

    @property
    def columns(self) -> int:
        """The weights of one filter."""
        return self.size // self.rows


@dataclass(frozen=True)
class NetworkFacts:
    """A dense network, before a method prepares it.

    Attributes:
        layers: by name, in order of execution.
        other_parameters: biases and normalisation, which stay dense.
        pooled: elements of one image that max-pooling takes in.
    """

    layers: Mapping[str, LayerFacts]
    other_parameters: int
    pooled: int

    @property
    def parameters(self) -> int:
        """Weights of the layers, biases and normalisation."""
        return self.other_parameters + sum(layer.size for layer in self.layers.values())

    @property
    def multiply_adds(self) -> int:
        """Of one image's forward pass."""
        return sum(layer.size * layer.positions for layer in self.layers.values())

    @property
    def activations(self) -> int:
        """Elements of one image that count as activations: what convolutions and max-pooling take in.

        The paper does not say what counts. This was chosen because, of the readings that we tried, it comes
        nearest to its three numbers for ResNet18 (`docs/notes/paper-costs.md`): a fit, not something that the
        text says.
        """
        *convolutions, _classifier = self.layers.values()
        return self.pooled + sum(layer.inputs for layer in convolutions)


def network_facts(network: Network) -> NetworkFacts:
    """The facts of a network; opaque operations count nothing."""
    layers: dict[str, LayerFacts] = {}
    pooled = 0
    ends = {next(iter(network.layers), None), next(reversed(network.layers), None)}
    for operation in network.operations:
        inputs = sum(math.prod(network.shapes[name]) for name in operation.inputs)
        if isinstance(operation, MaxPool):
            pooled += inputs
        if isinstance(operation, Layer):
            name = operation.module
            before = layers.get(name)
            positions = math.prod(network.shapes[operation.name][1:])
            layers[name] = LayerFacts(
                operation.weight_shape,
                positions + (before.positions if before else 0),
                inputs + (before.inputs if before else 0),
                sparse=name not in ends and not _is_depthwise(operation),
                pruned_input=name not in ends,
            )
    trained = [
        spec.shape for spec in network.arrays.values() if spec.role == "weight" and spec.shape is not None
    ]
    dense = sum(layer.size for layer in network.layers.values() if not layer.sparse)
    return NetworkFacts(layers, sum(map(math.prod, trained)) - dense, pooled)


@dataclass(frozen=True)
class MultiplyAdds:
    """Of one image's forward pass: with every weight, and with the active ones only."""

    dense: int
    active: int


def multiply_adds(model: Model) -> MultiplyAdds:
    """What a model takes for an image; of a dense one both numbers are the same."""
    layers, active = network_facts(model.network).layers, model.active_counts()
    return MultiplyAdds(
        sum(layer.size * layer.positions for layer in layers.values()),
        sum(active.get(name, layer.size) * layer.positions for name, layer in layers.items()),
    )


def _is_depthwise(layer: Layer) -> bool:
    return isinstance(layer, Convolution) and layer.groups > 1 and layer.shape[1] == 1
