"""Random small networks and states, as hypothesis draws them."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from fedmef.errors import NetworkError
from fedmef.sparsity.masks import random_mask
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
    Layer,
    LayerNorm,
    Linear,
    MaxPool,
    Normalization,
    Operation,
    ReLU,
    Scale,
    Shape,
)

KINDS = ("convolution", "convolution", "relu", "norm", "pool", "add", "concatenate", "scale", "layer_norm")
CLASSES = 3


@dataclass
class Growing:
    """A network under construction."""

    draw: DrawFn
    shapes: dict[str, Shape]
    operations: list[Operation] = field(default_factory=list)

    def append(self, operation: Operation) -> bool:
        """False when it cannot take these inputs, or gives too much."""
        try:
            shape = operation.output(*(self.shapes[name] for name in operation.inputs))
        except NetworkError:
            return False
        if min(shape) < 1 or math.prod(shape) > 600:
            return False
        self.shapes[operation.name] = shape
        self.operations.append(operation)
        return True

    def pair(self, low: int, high: int) -> tuple[int, int]:
        return self.draw(st.tuples(st.integers(low, high), st.integers(low, high)))


@st.composite
def models(draw: DrawFn, most: int = 7) -> Model:
    """A network of up to `most` operations and a classifier, and a state for it."""
    shape = draw(st.tuples(st.integers(1, 4), st.integers(3, 9), st.integers(3, 9)))
    growing = Growing(draw, {INPUT: shape})
    for number in range(draw(st.integers(1, most))):
        _add(growing, f"step{number}", str(draw(st.sampled_from(KINDS))))
    last = growing.operations[-1].name if growing.operations else INPUT
    growing.append(Flatten(name="flat", inputs=(last,)))
    features = growing.shapes["flat"][0]
    sparse = draw(st.booleans())
    growing.append(
        Linear(
            name="head",
            inputs=("flat",),
            module="head",
            shape=(CLASSES, features),
            bias=True,
            **_kept(growing, sparse),
        )
    )
    arrays = [
        name for step in growing.operations for name, spec in step.arrays().items() if spec.role == "weight"
    ]
    frozen = draw(st.lists(st.sampled_from(arrays), max_size=2, unique=True))
    # With its values frozen and its gain not, PyTorch's layer may keep its input exactly, and not pruned.
    gains = [name.replace(".values", ".gain") for name in frozen if name.endswith(".values")]
    frozen += [gain for gain in gains if gain in arrays and gain not in frozen]
    channels = shape[0]
    network = Network(
        Input(shape, (0.5,) * channels, (0.25,) * channels), tuple(growing.operations), tuple(frozen)
    )
    return Model(network, random_state(network, draw(st.integers(0, 2**32 - 1))))


def random_state(network: Network, seed: int) -> State:
    """Weights of about the size that keeps a signal, masks of any density, statistics of their own."""
    generator = np.random.default_rng(seed)
    state: State = {}
    for name, spec in network.arrays.items():
        kind = name.rpartition(".")[2]
        if spec.dtype == "int64":
            state[name] = np.array(generator.integers(0, 9))
        elif kind in ("gain", "running_var") or (kind == "weight" and len(spec.shape or ()) == 1):
            state[name] = generator.uniform(0.5, 1.5, spec.shape).astype(np.float32)
        elif spec.shape is not None and spec.dtype == "float32":
            state[name] = generator.normal(0, 0.5, spec.shape).astype(np.float32)
    for module, layer in network.sparse_layers.items():
        count = int(generator.integers(0, layer.size + 1))
        state[f"{module}.mask"] = random_mask(layer.size, count, generator)
        state[f"{module}.values"] = generator.normal(0, 0.5, count).astype(np.float32)
    return {name: state[name] for name in network.arrays}


def _add(growing: Growing, name: str, kind: str) -> None:
    source = growing.draw(st.sampled_from(sorted(growing.shapes)[-3:]))
    shape = growing.shapes[source]
    match kind:
        case "convolution":
            growing.append(_convolution(growing, name, source))
        case "relu":
            upper = growing.draw(st.sampled_from([None, 1.0]))
            growing.append(
                ReLU(name=name, inputs=(source,), upper=upper, compact=growing.draw(st.booleans()))
            )
        case "norm":
            affine = growing.draw(st.booleans())
            growing.append(
                BatchNorm(name=name, inputs=(source,), module=name, channels=shape[0], affine=affine)
            )
        case "pool":
            growing.append(_pool(growing, name, source))
        case "scale":
            growing.append(Scale(name=name, inputs=(source,), factor=1.5))
        case "layer_norm":
            # With the usual epsilon, rounding in an image of equal values is multiplied by 1e5.
            growing.append(LayerNorm(name=name, inputs=(source,), epsilon=1e-2))
        case "add":
            alike = [other for other, own in growing.shapes.items() if own == shape]
            other = growing.draw(st.sampled_from(alike))
            growing.append(Add(name=name, inputs=(source, other)))
        case "concatenate":
            alike = [other for other, own in growing.shapes.items() if own[1:] == shape[1:]]
            others = growing.draw(st.lists(st.sampled_from(alike), min_size=1, max_size=2))
            growing.append(Concatenate(name=name, inputs=(source, *others)))


def _convolution(growing: Growing, name: str, source: str) -> Layer:
    channels = growing.shapes[source][0]
    groups = growing.draw(st.sampled_from([n for n in range(1, channels + 1) if channels % n == 0]))
    out = groups * growing.draw(st.integers(1, 4))
    kernel = growing.pair(1, 3)
    return Convolution(
        name=name,
        inputs=(source,),
        module=name,
        shape=(out, channels // groups, *kernel),
        stride=growing.pair(1, 3),
        padding=growing.pair(0, 2),
        dilation=growing.pair(1, 2),
        groups=groups,
        bias=growing.draw(st.booleans()),
        **_kept(growing, growing.draw(st.booleans())),
    )


def _kept(growing: Growing, sparse: bool) -> dict[str, Any]:
    """How a layer is stored, normalised and cached."""
    if not sparse:
        return {}
    scalings: list[Literal["filter", "paper"] | None] = [None, "filter", "paper"]
    scaling = growing.draw(st.sampled_from(scalings))
    caches = [Cache(), Cache(0.5), Cache(0.95, "fp16"), Cache(0.7, "bf16")]
    return {
        "sparse": True,
        "gain": growing.draw(st.booleans()),
        "normalization": None if scaling is None else Normalization(1.2, scaling, 3),
        "cache": growing.draw(st.sampled_from(caches)),
    }


def _pool(growing: Growing, name: str, source: str) -> Operation:
    kernel = growing.pair(1, 3)
    padding = growing.draw(st.tuples(*(st.integers(0, length // 2) for length in kernel)))
    stride, ceil_mode = growing.pair(1, 3), growing.draw(st.booleans())
    inputs = (source,)
    match growing.draw(st.sampled_from(["maximum", "average", "adaptive"])):
        case "maximum":
            return MaxPool(
                name=name, inputs=inputs, kernel=kernel, stride=stride, padding=padding, ceil_mode=ceil_mode
            )
        case "average":
            counted, divisor = growing.draw(st.booleans()), growing.draw(st.sampled_from([None, 3]))
            return AveragePool(
                name=name,
                inputs=inputs,
                kernel=kernel,
                stride=stride,
                padding=padding,
                ceil_mode=ceil_mode,
                count_padding=counted,
                divisor=divisor,
            )
    return AdaptiveAveragePool(name=name, inputs=inputs, size=growing.pair(1, 4))
