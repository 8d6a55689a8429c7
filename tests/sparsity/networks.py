"""Small networks as data, made by hand, and states for them."""

from typing import Any

import numpy as np

from fedmef.sparsity.arrays import Array
from fedmef.sparsity.masks import active_count, random_mask
from fedmef.sparsity.model import Model, State
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
    LayerNorm,
    Linear,
    MaxPool,
    Normalization,
    Opaque,
    Operation,
    ReLU,
    Scale,
)


def images(channels: int = 3, height: int = 8, width: int = 8) -> Input:
    return Input((channels, height, width), (0.5,) * channels, (0.25,) * channels)


def convolution(name: str, source: str, shape: tuple[int, int, int, int], **rest: Any) -> Convolution:
    return Convolution(name=name, inputs=(source,), module=name, shape=shape, **rest)


def chain(*operations: Operation, of: Input | None = None) -> Network:
    return Network(of or images(), operations)


def pooled(source: str) -> tuple[Operation, Operation]:
    """The end of a network: one number a channel."""
    return AdaptiveAveragePool(name="pool", inputs=(source,)), Flatten(name="logits", inputs=("pool",))


def sparse_network() -> Network:
    """A sparse convolution `0` of 16 filters of 8·3·3 weights, and BatchNorm `1`; 16 classes."""
    return chain(
        convolution("0", INPUT, (16, 8, 3, 3), sparse=True, bias=True),
        BatchNorm(name="1", inputs=("0",), module="1", channels=16),
        *pooled("1"),
        of=images(8, 6, 6),
    )


def dense_network() -> Network:
    """The smallest one with all that a plain network has; 2 classes."""
    return chain(
        convolution("0", INPUT, (2, 1, 3, 3), bias=True),
        BatchNorm(name="1", inputs=("0",), module="1", channels=2),
        *pooled("1"),
        of=images(1, 6, 6),
    )


def normalized_network(classes: int = 10) -> Network:
    """Two NSConvs with pruned caches between, for images of 8x8 and grey, as FedMef trains it."""
    nsconv: dict[str, Any] = {
        "sparse": True,
        "padding": (1, 1),
        "normalization": Normalization(),
        "cache": Cache(0.5),
    }
    return chain(
        convolution("first", INPUT, (8, 1, 3, 3), padding=(1, 1), bias=True),
        ReLU(name="relu", inputs=("first",)),
        convolution("second", "relu", (8, 8, 3, 3), **nsconv),
        convolution("third", "second", (8, 8, 3, 3), **nsconv),
        Add(name="sum", inputs=("second", "third")),
        AdaptiveAveragePool(name="pool", inputs=("sum",)),
        Flatten(name="features", inputs=("pool",)),
        Linear(name="classifier", inputs=("features",), module="classifier", shape=(classes, 8), bias=True),
        of=images(1),
    )


def network_of_everything() -> Network:
    """Every kind of operation, and most of what they can be told."""
    return Network(
        images(3, 16, 16),
        (
            convolution("stem", INPUT, (8, 3, 3, 3), stride=(2, 1), padding=(1, 1), sparse=True, swat=0.5),
            BatchNorm(name="norm", inputs=("stem",), module="norm", channels=8, epsilon=1e-3, momentum=0.5),
            ReLU(name="relu6", inputs=("norm",), upper=6.0, compact=False),
            MaxPool(name="max", inputs=("relu6",), kernel=(3, 3), stride=(2, 2), padding=(1, 1)),
            convolution(
                "grouped",
                "max",
                (8, 2, 3, 3),
                padding=(2, 2),
                dilation=(2, 2),
                groups=4,
                sparse=True,
                gain=True,
                normalization=Normalization(gamma=0.5, scaling="paper", input_channels=2),
                cache=Cache(0.9, "bf16"),
            ),
            Add(name="sum", inputs=("max", "grouped")),
            Concatenate(name="both", inputs=("sum", "max")),
            AveragePool(name="mean", inputs=("both",), kernel=(2, 2), stride=(2, 2), divisor=3),
            Opaque(
                name="strange",
                inputs=("mean",),
                description="GELU 'strange'",
                shape=(16, 2, 4),
                own=BatchNorm(name="", inputs=(), module="strange", channels=4, affine=False).arrays(),
            ),
            AdaptiveAveragePool(name="pool", inputs=("strange",), size=(2, 1)),
            Flatten(name="features", inputs=("pool",)),
            LayerNorm(name="even", inputs=("features",), epsilon=1e-6),
            Linear(name="hidden", inputs=("even",), module="h", shape=(12, 32), bias=True),
            Scale(name="half", inputs=("hidden",), factor=0.5),
            ReLU(name="relu", inputs=("half",)),
            Linear(name="logits", inputs=("relu",), module="classifier", shape=(5, 12), dtype="float64"),
        ),
        frozen=("norm.weight", "h.weight"),
    )


def random_state(network: Network, sparsity: float = 0.9, seed: int = 0) -> State:
    """Masks at random, weights from a normal distribution, variances above 0."""
    random = np.random.default_rng(seed)
    counts = {name: active_count(layer.size, sparsity) for name, layer in network.sparse_layers.items()}

    def made(name: str) -> Array:
        spec = network.arrays[name]
        layer, _, kind = name.rpartition(".")
        if spec.role == "mask":
            return random_mask(network.sparse_layers[layer].size, counts[layer], random)
        if spec.role == "counter":
            return np.array(3)
        shape = spec.shape if spec.shape is not None else (counts[layer],)
        drawn = random.standard_normal(shape).astype(spec.dtype)
        return np.square(drawn) if kind == "running_var" else drawn

    return {name: made(name) for name in network.arrays}


def random_model(network: Network, sparsity: float = 0.9, seed: int = 0) -> Model:
    return Model(network, random_state(network, sparsity, seed))


def same_state(one: State, other: State) -> bool:
    """To the bit, types and order of names included."""
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in one
    )
