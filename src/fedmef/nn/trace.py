"""A traced network on its way from a graph of PyTorch calls to a list of operations."""

import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from fedmef.nn import functionals
from fedmef.nn.describe import array_spec, describe
from fedmef.nn.features import feature_norm
from fedmef.nn.layers import SparseConv2d
from fedmef.nn.place import line_here, module_and_line, where
from fedmef.nn.record import Recording, record
from fedmef.nn.without_norm import Copy
from fedmef.sparsity.network import INPUT
from fedmef.sparsity.operations import (
    AdaptiveAveragePool,
    Add,
    ArraySpec,
    Concatenate,
    Flatten,
    LayerNorm,
    Opaque,
    Operation,
    Scale,
    Shape,
)

_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
_IN_PLACE = (operator.iadd, "add_")
_RESHAPES = (torch.flatten, torch.reshape, "flatten", "view", "reshape")
_MEANS = (torch.mean, "mean")
_COPIES = (torch.Tensor.contiguous, "contiguous", "clone")


def _max_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> nn.MaxPool2d:
    """The function takes its arguments in another order than the module."""
    return nn.MaxPool2d(kernel_size, stride, padding, dilation, return_indices, ceil_mode)


# A functional call, and the module that does the same with its arguments.
_FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    F.relu: nn.ReLU,
    torch.relu: nn.ReLU,
    "relu": nn.ReLU,
    F.relu6: nn.ReLU6,
    F.max_pool2d: _max_pool,
    torch.max_pool2d: _max_pool,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}


class UntraceableError(Exception):
    """forward() has control flow, or something else that symbols cannot follow."""


class Tracer(fx.Tracer):
    """Looks into everything but layers that an operation describes, and notes the line of each call."""

    outermost: FrameType

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        self.outermost = sys._getframe()
        return super().trace(root, concrete_args)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta["line"] = line_here(self.outermost)
        return node

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, SparseConv2d) or type(m).__module__.startswith("fedmef.nn.")
        return known or super().is_leaf_module(m, module_qualified_name)


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Every module is in training, or not, after the block as it was before."""
    training = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, was in training.items():
            module.training = was


@contextmanager
def asking_for_training(model: nn.Module, asked: list[str], outermost: FrameType) -> Iterator[None]:
    """Note where modules' own code reads `self.training` inside the block, as stochastic depth does.

    Comparing two traces would not do: what such a module draws at random may be the same by chance.
    """
    tracer, kinds = Tracer(), {}
    for name, module in model.named_modules():
        if not name or not tracer.is_leaf_module(module, name):
            kinds[module] = type(module)

            def training(_: nn.Module, name: str = name) -> bool:
                asked.append(module_and_line(model, name, line_here(outermost)))
                return True

            own = {"training": property(training), "__module__": type(module).__module__}
            module.__class__ = type(type(module).__name__, (type(module),), own)
    try:
        yield
    finally:
        for module, kind in kinds.items():
            module.__class__ = kind


class _Results(fx.Interpreter):
    """Runs a traced network and notes the shape of every tensor, and what else there is, such as sizes."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(module, graph=graph)
        self.shapes: dict[str, Shape] = {}
        self.others: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.shapes[n.name] = tuple(result.shape)
        else:
            self.others[n.name] = result
        return result


def follow(model: nn.Module, batch: Tensor) -> tuple[fx.Graph, Recording | None]:
    """The calls of forward(): by symbols, or where they fail by running it, which is recorded."""
    with torch.random.fork_rng(devices=[]), functionals.as_written():
        try:
            return Tracer().trace(model), None
        except Exception:  # user code runs here, so it may raise anything
            return record_calls(model, batch)


def record_calls(model: nn.Module, batch: Tensor) -> tuple[fx.Graph, Recording]:
    """The calls of forward() on this batch."""
    stack: list[str] = []
    try:
        with torch.random.fork_rng(devices=[]), functionals.as_written():
            recording = record(model, [batch], Tracer().is_leaf_module, stack)
    except Exception as error:  # user code runs here, so it may raise anything
        raise UntraceableError(where(error, model, stack)) from error
    return recording.graph, recording


class Trace:
    """One network, run once on a batch of images.

    Attributes:
        recording: how it was followed where symbols could not; None where they could.
    """

    def __init__(self, model: nn.Module, batch: Tensor) -> None:
        self.model, self.modules = model, dict(model.named_modules())
        self.compact = functionals.are_saving(model)
        self.graph, self.recording = follow(model, batch)
        self.shapes: dict[str, Shape] = {}
        self.others: dict[str, Any] = {}
        if self.recording is None:
            try:
                results = _Results(model, self.graph)
                with torch.random.fork_rng(devices=[]):
                    results.run(batch)
                self.shapes, self.others = results.shapes, results.others
            except Exception:  # user code runs here, so it may raise anything
                self.graph, self.recording = record_calls(model, batch)
        if self.recording is not None:
            self.shapes = self.recording.shapes
        self.names: dict[fx.Node, str] = {}  # which result a node's is
        self.found: list[Operation] = []

    def operations(self) -> tuple[Operation, ...]:
        """What forward() does, step by step; `UntraceableError` when that is not a list of steps."""
        images = [node for node in self.graph.nodes if node.op == "placeholder"]
        if len(images) != 1:
            raise UntraceableError(f"forward() takes {len(images)} arguments")
        self.names[images[0]] = INPUT
        for node in self.graph.nodes:
            if node.op in ("call_module", "call_function", "call_method", "get_attr"):
                self._follow(node)
        (result,) = next(node for node in self.graph.nodes if node.op == "output").args
        if not isinstance(result, fx.Node) or self.names.get(result) in (None, INPUT):
            raise UntraceableError("forward() returns something else than one result")
        if self.found[-1].name != self.names[result]:
            raise UntraceableError("the last call in forward() is not what it returns")
        return tuple(self.found)

    def _follow(self, node: fx.Node) -> None:
        if node.name not in self.shapes:
            return  # a number, such as a batch size
        inputs = tuple(self.names[source] for source in node.all_input_nodes if source in self.names)
        before, result = len(self.found), None
        if not self._overwrites(node, inputs):
            result = self._module(node, inputs) if node.op == "call_module" else self._call(node, inputs)
        if result is None:
            del self.found[before:]
            result = self._add(self._opaque(node, inputs))
        self.names[node] = result

    def _add(self, operation: Operation) -> str:
        self.found.append(operation)
        return operation.name

    def _module(self, node: fx.Node, inputs: tuple[str, ...]) -> str | None:
        module, name = self.modules[str(node.target)], str(node.target)
        if len(inputs) != 1 or len(node.args) != 1 or node.kwargs:
            return None
        if isinstance(module, nn.Identity | Copy):
            return inputs[0]
        norm = feature_norm(module)
        if norm is not None:
            inputs = (self._add(LayerNorm(name=f"{node.name}.features", inputs=inputs)),)
        operation = describe(module, node.name, inputs, name, self._shape(inputs[0], node))
        if operation is None:
            return None
        result = self._add(operation)
        if norm is not None:
            result = self._add(Scale(name=f"{node.name}.scaled", inputs=(result,), factor=norm.scale))
        return result

    def _call(self, node: fx.Node, inputs: tuple[str, ...]) -> str | None:  # noqa: PLR0911
        shape, target, name = self.shapes[node.name], node.target, node.name
        sources = [
            self.shapes.get(source.name, ()) for source in node.all_input_nodes if source in self.names
        ]
        if target in _ADDITIONS and len(inputs) == 2 and sources == [shape, shape] and not node.kwargs:
            return self._add(Add(name=name, inputs=inputs))
        if target in _ADDITIONS and node.args == (node.args[:1] * 2) and not node.kwargs:
            return self._add(Add(name=name, inputs=inputs * 2))
        if target in (torch.cat, torch.concat) and _argument(node, 1, "dim", 0) in (1, 1 - len(shape)):
            parts = _argument(node, 0, "tensors", None)
            if not isinstance(parts, list | tuple):
                return None
            return self._add(Concatenate(name=name, inputs=tuple(self.names[part] for part in parts)))
        if len(inputs) != 1:
            return None
        if target in _COPIES:
            return inputs[0]
        flat = len(shape) == 2 and len(sources[0]) >= 2 and shape[0] == sources[0][0]
        if target in _RESHAPES and flat and shape[1] == math.prod(sources[0][1:]):
            return self._add(Flatten(name=name, inputs=inputs))
        if target in _MEANS and len(sources[0]) == 4 and self._is_of_pixels(node):
            pooled = AdaptiveAveragePool(name=f"{name}.pooled", inputs=inputs, compact=self.compact)
            self._add(pooled)
            if len(shape) == 4:
                return pooled.name
            return self._add(Flatten(name=name, inputs=(pooled.name,)))
        if target in _FUNCTIONS:
            arguments, options = map_arg(
                (node.args[1:], node.kwargs), lambda source: self.others.get(source.name)
            )
            module = _FUNCTIONS[target](*arguments, **_without(options, "input", "inplace", "return_indices"))
            operation = describe(module, name, inputs, "", sources[0], compact=self.compact)
            return None if operation is None else self._add(operation)
        return None

    def _is_of_pixels(self, node: fx.Node) -> bool:
        """Whether a mean is over the pixels of each channel, and keeps its type."""
        dimensions = _argument(node, 1, "dim", None)
        if not isinstance(dimensions, list | tuple) or node.kwargs.get("dtype") is not None:
            return False
        return sorted(dimension % 4 for dimension in dimensions) == [2, 3]

    def _overwrites(self, node: fx.Node, inputs: tuple[str, ...]) -> bool:
        """Whether a call changes something in place that is read again: data has no such thing."""
        same = [source for source, name in self.names.items() if name in inputs[:1]]
        return self._is_in_place(node) and any(node < user for source in same for user in source.users)

    def _is_in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return bool(getattr(self.modules[str(node.target)], "inplace", False))
        asked = node.target in (F.relu, F.relu6) and _argument(node, 1, "inplace", False)
        return bool(asked) or node.target in _IN_PLACE

    def _opaque(self, node: fx.Node, inputs: tuple[str, ...]) -> Opaque:
        own: dict[str, ArraySpec] = {}
        if node.op == "call_module":
            tensors = self.modules[str(node.target)].state_dict(prefix=f"{node.target}.")
            own = {name: array_spec(name, tensor, self.model) for name, tensor in tensors.items()}
            description = f"{type(self.modules[str(node.target)]).__name__} '{node.target}'"
        else:
            if node.op == "get_attr" and str(node.target) in self.model.state_dict():
                tensor = self.model.state_dict()[str(node.target)]
                own = {str(node.target): array_spec(str(node.target), tensor, self.model)}
            description = _called(node)
        if line := node.meta.get("line"):
            description = f"{description}, {line}"
        shape = self.shapes[node.name][1:] or (1,)
        return Opaque(name=node.name, inputs=inputs, description=description[:200], shape=shape, own=own)

    def _shape(self, name: str, node: fx.Node) -> Shape:
        return self.shapes[node.all_input_nodes[0].name]


def _called(node: fx.Node) -> str:
    """A call as people write it."""
    name = str(getattr(node.target, "__name__", node.target))
    if node.op == "call_method":
        return f"x.{name}()"
    home = getattr(node.target, "__module__", None)
    if home in ("torch.nn.functional", "torch._C._nn"):
        return f"F.{name}"
    return f"torch.{name}" if getattr(torch, name, None) is node.target else name


def _argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _without(kwargs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in names}
