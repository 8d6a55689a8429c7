"""The forward pass as instructions, in as few buffers as the network allows."""

import math
from typing import Literal

from fedmef.native.needs import Needs
from fedmef.native.writer import Writer
from fedmef.sparsity.masks import active_count
from fedmef.sparsity.network import INPUT
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
    Shape,
)

Mode = Literal["train", "growth", "predict"]
Pool = MaxPool | AveragePool | AdaptiveAveragePool


class ForwardPass:
    """Writes the instructions of all operations, and remembers what the backward pass needs of them.

    Attributes:
        buffers: where each result is, or was before its last reader wrote over it.
        saved: of an operation, the buffer of what its backward step needs besides results.
        caches: of a layer with a pruned cache, the buffer that keeps its input.
    """

    def __init__(self, needs: Needs, writer: Writer, mode: Mode) -> None:
        self.needs, self.writer, self.mode = needs, writer, mode
        self.shapes = needs.network.shapes
        self.buffers: dict[str, int] = {}
        self.saved: dict[str, int] = {}
        self.caches: dict[str, int] = {}
        self._pruned: dict[tuple[str, Shape, Cache], int] = {}

    def write(self) -> None:
        """All operations, those that the logits do not depend on too: their statistics are updated."""
        self.buffers[INPUT] = self.writer.dense(self.shapes[INPUT])
        self.writer.emit("read_images", {"to": self.buffers[INPUT]})
        for position, operation in enumerate(self.needs.network.operations):
            if not isinstance(operation, Flatten):
                self.buffers[operation.name] = self._result(operation, position)

    def buffer(self, name: str) -> int:
        """Where a result is."""
        return self.buffers[self.needs.root[name]]

    def _result(self, operation: Operation, position: int) -> int:
        match operation:
            case Layer():
                return self._layer(operation, position)
            case BatchNorm():
                return self._batch_norm(operation, position)
            case MaxPool() | AveragePool() | AdaptiveAveragePool():
                return self._pool(operation)
            case Add():
                return self._add(operation, position)
            case Concatenate():
                return self._concatenate(operation)
        return self._in_place(operation, position)

    def _layer(self, layer: Layer, position: int) -> int:
        source = self.needs.root[layer.inputs[0]]
        if self.needs.reads_input(layer) and layer.cache.sparsity:
            self.caches[layer.name] = self._prune(source, self.shapes[layer.inputs[0]], layer.cache)
        total = None if isinstance(layer, Linear) and not layer.sparse else self._sum_of(layer, position)
        if total is not None:
            result = total
        elif is_plane_by_plane(layer) and self.needs.may_overwrite(source, position):
            result = self.buffers[source]
        else:
            result = self.writer.dense(self.shapes[layer.name])
        self.writer.emit(
            "convolve",
            {"x": self.buffers[source], "y": result},
            layer=layer.module,
            accumulate=total is not None,
        )
        return result

    def _prune(self, name: str, shape: Shape, cache: Cache) -> int:
        """What is kept of a result: once, however many layers take it in this shape."""
        if (name, shape, cache) not in self._pruned:
            layout = self.writer.layout
            keep = active_count(layout.images * math.prod(shape), cache.sparsity)
            kept = self.writer.new(layout.cache_bytes(shape, keep, cache))
            buffers = {"x": self.buffers[name], "cache": kept}
            self.writer.emit("prune", buffers, shape=spatial(shape), keep=keep, dtype=cache.dtype)
            self._pruned[name, shape, cache] = kept
        return self._pruned[name, shape, cache]

    def _sum_of(self, layer: Layer, position: int) -> int | None:
        """The buffer of what a layer's result is added to, if it can be added right there and then."""
        readers = self.needs.readers[layer.name]
        operations = self.needs.network.operations
        if len(readers) != 1 or readers[0] == len(operations):
            return None
        total = operations[readers[0]]
        others = [self.needs.root[name] for name in total.inputs if self.needs.root[name] != layer.name]
        if not isinstance(total, Add) or len(others) != 1 or others[0] not in self.buffers:
            return None
        before = [reader for reader in self.needs.readers[others[0]] if reader != readers[0]]
        if others[0] in self.needs.kept or max(before, default=-1) >= position:
            return None
        return self.buffers[others[0]]

    def _add(self, operation: Operation, position: int) -> int:
        one, other = (self.needs.root[name] for name in operation.inputs)
        if self.buffers[one] == self.buffers[other] and one != other:
            return self.buffers[one]  # a layer has added its result already
        if not self.needs.may_overwrite(one, position) and self.needs.may_overwrite(other, position):
            one, other = other, one
        total = self._writable(one, position)
        if one == other:
            self.writer.emit("scale", {"x": total}, factor=2.0)
        else:
            self.writer.emit("add", {"to": total, "source": self.buffers[other]})
        return total

    def _batch_norm(self, operation: BatchNorm, position: int) -> int:
        source, shape = self.needs.root[operation.inputs[0]], self.shapes[operation.name]
        fixed = is_fixed(self.writer.layout.images, shape, self.mode)
        in_place = self.needs.may_overwrite(source, position)
        result = self.buffers[source] if in_place else self.writer.dense(shape)
        buffers = {"x": self.buffers[source], "y": result}
        if self.mode != "predict":
            buffers["statistics"] = self.saved[operation.name] = self.writer.new(8 * operation.channels)
        options = {"layer": operation.module, "shape": spatial(shape)}
        if fixed:
            self.writer.emit("batch_norm_fixed", buffers, **options)
        else:
            self.writer.emit("batch_norm", buffers, **options, track=self.mode == "train")
        return result

    def _pool(self, operation: Pool) -> int:
        result = self.writer.dense(self.shapes[operation.name])
        buffers = {"x": self.buffer(operation.inputs[0]), "y": result}
        if isinstance(operation, MaxPool) and operation.name in self.needs.differentiable:
            elements = self.writer.layout.elements(self.shapes[operation.name])
            buffers["places"] = self.saved[operation.name] = self.writer.new(elements)
        self.writer.emit("pool", buffers, **pooling(operation, self.shapes))
        return result

    def _concatenate(self, operation: Operation) -> int:
        result = self.writer.dense(self.shapes[operation.name])
        for name, place, size, stride in self.parts(operation):
            self.writer.copy_part(
                result, (place, stride), self.buffer(name), (0, size), size, accumulate=False
            )
        return result

    def parts(self, operation: Operation) -> list[tuple[str, int, int, int]]:
        """Of every input of a concatenation: its name, where it begins, its size and the whole size."""
        lanes, place, parts = self.writer.layout.lanes, 0, []
        whole = math.prod(self.shapes[operation.name]) * lanes
        for name in operation.inputs:
            size = math.prod(self.shapes[name]) * lanes
            parts.append((name, place, size, whole))
            place += size
        return parts

    def _in_place(self, operation: Operation, position: int) -> int:
        """What changes every element where it is."""
        layout, shape = self.writer.layout, self.shapes[operation.name]
        result = self._writable(self.needs.root[operation.inputs[0]], position)
        keeps = operation.name in self.needs.differentiable
        match operation:
            case ReLU():
                buffers = {"x": result}
                if keeps:
                    buffers["bits"] = self.saved[operation.name] = self.writer.new(layout.bit_bytes(shape))
                upper = math.inf if operation.upper is None else operation.upper
                at_zero = self.mode == "growth" and operation.compact
                count = layout.elements(shape)
                self.writer.emit("relu", buffers, count=count, upper=upper, at_zero=at_zero)
            case Scale():
                self.writer.emit("scale", {"x": result}, factor=operation.factor)
            case LayerNorm():
                factors = self.saved[operation.name] = self.writer.new(4 * layout.blocks * layout.lanes)
                self.writer.emit(
                    "layer_norm",
                    {"x": result, "factors": factors},
                    size=math.prod(shape),
                    epsilon=operation.epsilon,
                )
            case _:
                raise NotImplementedError(operation.kind)
        return result

    def _writable(self, name: str, position: int) -> int:
        """A buffer with a result that may be written over: its own, or a copy."""
        if self.needs.may_overwrite(name, position):
            return self.buffers[name]
        return self.writer.copied(self.buffers[name], self.shapes[name])


def is_plane_by_plane(layer: Layer) -> bool:
    """Whether a layer reads a whole plane before it writes one of the same size: it can work in place."""
    return (
        isinstance(layer, Convolution)
        and layer.groups == layer.shape[0] > 1 == layer.shape[1]
        and layer.stride == (1, 1)
        and all(
            2 * padding == dilation * (kernel - 1)
            for padding, dilation, kernel in zip(layer.padding, layer.dilation, layer.shape[2:], strict=True)
        )
    )


def is_fixed(images: int, shape: Shape, mode: Mode) -> bool:
    """Whether BatchNorm takes the running statistics: one value a channel has no variance."""
    return mode == "predict" or images * math.prod(shape[1:]) == 1


def spatial(shape: Shape) -> tuple[int, int, int]:
    """Channels, height and width; features are channels of one pixel."""
    channels, height, width = (*shape, 1, 1)[:3]
    return channels, height, width


def pooling(operation: Pool, shapes: dict[str, Shape]) -> dict[str, object]:
    """What describes pooling to the program."""
    options: dict[str, object] = {
        "input": spatial(shapes[operation.inputs[0]]),
        "output": spatial(shapes[operation.name]),
    }
    match operation:
        case MaxPool():
            window = (*operation.kernel, *operation.stride, *operation.padding, *operation.dilation)
            return {**options, "pooling": "maximum", "window": window, "count_padding": True, "divisor": 0}
        case AveragePool():
            window = (*operation.kernel, *operation.stride, *operation.padding, 1, 1)
            rules = {"count_padding": operation.count_padding, "divisor": operation.divisor or 0}
            return {**options, "pooling": "average", "window": window, **rules}
    window = (1, 1, 1, 1, 0, 0, 1, 1)
    return {**options, "pooling": "adaptive", "window": window, "count_padding": True, "divisor": 0}
