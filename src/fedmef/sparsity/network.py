"""A network as data: a frozen, versioned and validated list of operations that serialises to JSON.

It is the schema of the messages, what update checks and cost estimates read, and the program of a backend.
`fedmef.nn.export` makes one from a PyTorch network.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmef.errors import NetworkError
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.operations import (
    OPERATIONS,
    ArraySpec,
    BatchNorm,
    Layer,
    Opaque,
    Operation,
    Shape,
)
from fedmef.sparsity.reading import read_fields, read_value, write_fields

FORMAT = 1
INPUT = "input"  # the name of the images
MAXIMUM_BYTES = 2**20
MAXIMUM_OPERATIONS = 10_000
MAXIMUM_ELEMENTS = 2**31  # of one result or one array
MAXIMUM_DIMENSIONS = 8  # likewise


@dataclass(frozen=True)
class Input:
    """Images as a network takes them: uint8, normalised by channel as `(x / 255 − mean) / std`."""

    shape: tuple[int, int, int]  # [channels, height, width]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != self.shape[0] or len(self.std) != self.shape[0]:
            raise NetworkError(
                f"{len(self.mean)} means, {len(self.std)} deviations, {self.shape[0]} channels"
            )
        if min(self.shape) < 1 or not _is_moderate(self.shape) or min(self.std) <= 0:
            raise NetworkError(f"images of shape {list(self.shape)} and deviations {list(self.std)}")

    def scale_and_shift(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What takes pixels from 0 to 255 to the network's input: `x · scale − shift`, by channel."""
        mean, std = np.array(self.mean, dtype=np.float32), np.array(self.std, dtype=np.float32)
        return np.float32(1) / (np.float32(255) * std), mean / std

    def normalize(self, images: Array) -> NDArray[np.float32]:
        """uint8 [n, C, H, W] → float32."""
        scale, shift = (constant[:, None, None] for constant in self.scale_and_shift())
        result: NDArray[np.float32] = images.astype(np.float32) * scale - shift
        return result


@dataclass(frozen=True)
class Network:
    """What a network computes.

    Attributes:
        input: the images.
        operations: each takes results of those before it; the last one's is the logits.
        frozen: arrays that training leaves as they are.
    """

    input: Input
    operations: tuple[Operation, ...]
    frozen: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not 1 <= len(self.operations) <= MAXIMUM_OPERATIONS:
            raise NetworkError(f"a network of {len(self.operations)} operations")
        if len(self.shapes[self.operations[-1].name]) != 1:
            raise NetworkError("the last operation must give one number for each class")
        if unknown := set(self.frozen) - self.arrays.keys():
            raise NetworkError(f"'{min(unknown)}' is frozen, but there is no such array")
        self._check_modules()

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The shape of every result, by name."""
        shapes: dict[str, Shape] = {INPUT: self.input.shape}
        for operation in self.operations:
            if operation.name in shapes:
                raise NetworkError(f"two results are called '{operation.name}'")
            if missing := [name for name in operation.inputs if name not in shapes]:
                raise NetworkError(f"'{operation.name}' takes '{missing[0]}', which is not there before it")
            shape = operation.output(*(shapes[name] for name in operation.inputs))
            if not _is_moderate(shape) or min(shape, default=1) < 1:
                raise NetworkError(f"'{operation.name}' gives {list(shape[:MAXIMUM_DIMENSIONS])}")
            shapes[operation.name] = shape
        return shapes

    @cached_property
    def arrays(self) -> dict[str, ArraySpec]:
        """What a state of this network is made of, by name, in the order of use."""
        arrays: dict[str, ArraySpec] = {}
        for operation in self.operations:
            for name, spec in operation.arrays().items():
                if arrays.setdefault(name, spec) != spec:
                    raise NetworkError(f"two operations use '{name}' differently")
                if spec.shape is not None and not _is_moderate(spec.shape):
                    raise NetworkError(f"'{name}' is of shape {list(spec.shape[:MAXIMUM_DIMENSIONS])}")
        return arrays

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """Convolutions and linear layers by module, in the order of their first use."""
        layers: dict[str, Layer] = {}
        for operation in self.operations:
            if isinstance(operation, Layer):
                layers.setdefault(operation.module, operation)
        return layers

    @cached_property
    def sparse_layers(self) -> dict[str, Layer]:
        """The layers that store active values and a mask, those with all weights active included."""
        return {module: layer for module, layer in self.layers.items() if layer.sparse}

    @cached_property
    def floats(self) -> tuple[str, ...]:
        """Arrays that are averaged: weights and statistics."""
        return tuple(name for name, spec in self.arrays.items() if spec.role in ("weight", "statistic"))

    @property
    def classes(self) -> int:
        """How many logits there are."""
        return self.shapes[self.operations[-1].name][0]

    @property
    def opaque(self) -> Opaque | None:
        """The first operation that needs the network's own PyTorch code, if there is one."""
        return next((operation for operation in self.operations if isinstance(operation, Opaque)), None)

    @cached_property
    def digest(self) -> str:
        """What tells this network from others."""
        return hashlib.blake2b(self.to_json(), digest_size=16).hexdigest()

    def to_json(self) -> bytes:
        """Equal networks give equal bytes."""
        content = {
            "format": FORMAT,
            "input": write_fields(self.input),
            "operations": [{"kind": step.kind, **write_fields(step)} for step in self.operations],
            "frozen": list(self.frozen),
        }
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "Network":
        """The inverse of `to_json`; raises `NetworkError` for anything else, before it takes much memory."""
        if len(content) > MAXIMUM_BYTES:
            raise NetworkError(f"a network of {len(content)} bytes: the limit is {MAXIMUM_BYTES}")
        try:
            table = json.loads(content)
        except (ValueError, RecursionError):
            raise NetworkError("a network must be JSON") from None
        if not isinstance(table, dict) or table.get("format") != FORMAT:
            raise NetworkError(f"not a network of format {FORMAT}")
        if table.keys() != {"format", "input", "operations", "frozen"}:
            raise NetworkError("a network has input, operations and frozen, and nothing else")
        steps = table["operations"]
        if not isinstance(steps, list) or len(steps) > MAXIMUM_OPERATIONS:
            raise NetworkError(f"operations must be a list of at most {MAXIMUM_OPERATIONS}")
        return cls(
            read_fields(Input, table["input"]),
            tuple(map(_operation, steps)),
            read_value(tuple[str, ...], table["frozen"], "frozen"),
        )

    def _check_modules(self) -> None:
        """A module that is used twice is the same one both times, and of a size that an array can have."""
        modules: dict[str, Layer | BatchNorm] = {}
        for operation in self.operations:
            if isinstance(operation, Layer | BatchNorm):
                first = modules.setdefault(operation.module, operation)
                if replace(operation, name=first.name, inputs=first.inputs) != first:
                    raise NetworkError(f"two operations use '{operation.module}' differently")
            if isinstance(operation, Layer) and not _is_moderate(operation.weight_shape):
                raise NetworkError(f"'{operation.name}' has {operation.size} weights")
        for module in modules:
            parents = [module[:place] for place, letter in enumerate(module) if letter == "."]
            if inside := [parent for parent in parents if parent in modules]:
                raise NetworkError(f"the module '{module}' cannot be inside of '{inside[0]}'")


def _operation(table: Any) -> Operation:
    kind = table.get("kind") if isinstance(table, dict) else None
    if not isinstance(kind, str):
        raise NetworkError("an operation must be a table, and have a kind")
    if kind not in OPERATIONS:
        raise NetworkError(f"there is no operation of kind {ascii(kind)[:80]}")
    return read_fields(OPERATIONS[kind], {name: value for name, value in table.items() if name != "kind"})


def _is_moderate(shape: Shape) -> bool:
    return len(shape) <= MAXIMUM_DIMENSIONS and math.prod(shape) <= MAXIMUM_ELEMENTS
