"""Models of a few weights, whose adjustments can be followed in the head."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmef.federation.aggregation import weighted_mean
from fedmef.methods.base import Rules
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.masks import mask_from_positions
from fedmef.sparsity.model import Model, State, check_state
from fedmef.sparsity.network import Input, Network
from fedmef.sparsity.operations import BatchNorm, Concatenate, Convolution, Flatten
from fedmef.wire.job import Job

MEAN = Rules(weighted_mean)
ADJUSTING = Job(
    method="fedmef", round=5, seed=0, learning_rate=0.01, initial_rate=1.0, adjustment_rate=0.5, extrusion=0.4
)
ORDINARY = Job(method="fedmef", round=1, seed=0, learning_rate=0.1, initial_rate=1.0)


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def integers(*values: int) -> Array:
    return np.array(values, np.int64)


def layer_model(positions: Sequence[int], values: Sequence[float], **options: Any) -> Model:
    """One layer, called 0: filters of four weights, side by side, on an image of four pixels."""
    filters = options.pop("filters", 2)
    frozen = options.pop("frozen", ())
    layer = _layer("0", filters, **options)
    network = Network(_input(4), (layer, Flatten(name="logits", inputs=("0",))), frozen)
    return Model(network, checked(network, {"0": (positions, values)}))


def with_batchnorm(positions: Sequence[int], values: Sequence[float]) -> Model:
    """The same with a BatchNorm, called 1."""
    norm = BatchNorm(name="1", inputs=("0",), module="1", channels=2)
    network = Network(_input(4), (_layer("0", 2), norm, Flatten(name="logits", inputs=("1",))))
    return Model(network, checked(network, {"0": (positions, values)}))


def two_layers(
    first: tuple[Sequence[int], Sequence[float]],
    second: tuple[Sequence[int], Sequence[float]],
    filters: tuple[int, int] = (1, 1),
    frozen: tuple[str, ...] = (),
) -> Model:
    """Two layers of the same image, whose weights cost one multiply-add each."""
    network = Network(
        _input(4),
        (
            _layer("0", filters[0]),
            _layer("1", filters[1]),
            Concatenate(name="both", inputs=("0", "1")),
            Flatten(name="logits", inputs=("both",)),
        ),
        frozen,
    )
    return Model(network, checked(network, {"0": first, "1": second}))


def chain(
    first: tuple[Sequence[int], Sequence[float]], second: tuple[Sequence[int], Sequence[float]]
) -> Model:
    """A layer with an output of four pixels, then one with an output of a single pixel."""
    network = Network(
        _input(7),
        (_layer("0", 1), _layer("1", 1, inputs=("0",)), Flatten(name="logits", inputs=("1",))),
    )
    return Model(network, checked(network, {"0": first, "1": second}))


def checked(network: Network, layers: dict[str, tuple[Sequence[int], Sequence[float]]]) -> State:
    """A state with these weights; everything else is 1."""
    state: State = {
        name: np.ones(spec.shape, spec.dtype)
        for name, spec in network.arrays.items()
        if spec.shape is not None and spec.role != "mask"
    }
    for name, (positions, values) in layers.items():
        state[f"{name}.mask"] = mask_from_positions(np.array(positions), network.layers[name].size)
        state[f"{name}.values"] = np.array(values, np.float32)
    check_state(network, state)
    return state


def _input(width: int) -> Input:
    return Input((1, 1, width), (0.0,), (1.0,))


def _layer(name: str, filters: int, inputs: tuple[str, ...] = ("input",), **options: Any) -> Convolution:
    return Convolution(
        name=name, inputs=inputs, module=name, sparse=True, shape=(filters, 1, 1, 4), **options
    )
