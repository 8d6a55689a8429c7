"""The graph of a network, noted while it runs on an example: for code that symbols cannot follow.

Sizes are numbers then, branches are decided, and modules may be made in `forward()`. What is noted is the
path that this example takes.
"""

import operator
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from fedmef.nn.place import line_here, module_and_line

# What tells of a tensor without looking at its values; properties such as x.shape are read by `__get__`.
_WITHOUT_VALUES = {
    "__get__", "size", "dim", "ndimension", "numel", "nelement", "__len__", "stride", "storage_offset",
    "is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_inference", "is_same_size",
    "element_size", "get_device", "type", "__hash__", "__format__", "__repr__", "__set__", "__setitem__",
}  # fmt: skip
IsLeaf = Callable[[nn.Module, str], bool]


@dataclass
class Recording:
    """A graph whose nodes are real calls, and the shapes of their results.

    Attributes:
        graph: each node's meta has the `line` of the user's code that makes the call.
        shapes: by the names of nodes.
        branches: the modules in which values decided a branch.
        values: where values of tensors became plain numbers, for people: a branch is one such place.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    branches: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)


def record(model: nn.Module, inputs: Sequence[Any], is_leaf: IsLeaf, stack: list[str]) -> Recording:
    """Run a model and note its calls; leaves are one call each. `stack` names the modules that are running.

    After an error it names those that ran when it happened.
    """
    recorder = _Recorder(model, is_leaf, stack, sys._getframe())
    arguments = [recorder.placeholder(value) for value in inputs]
    with torch.no_grad(), _noting(recorder), recorder:
        result = model(*arguments)
    recorder.output(result)
    return recorder.recording


class _Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module, is_leaf: IsLeaf, stack: list[str], outermost: FrameType) -> None:
        super().__init__()
        self.recording, self.is_leaf, self.stack = Recording(), is_leaf, stack
        self.model, self.outermost = model, outermost
        self.thread, self.inside_leaf = threading.get_ident(), False
        self.modules = {id(module): name for name, module in model.named_modules()}
        self.nodes: dict[int, fx.Node] = {}
        self.alive: list[Any] = []  # an object's id is its own only while it lives
        self.attributes = {
            id(tensor): name for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        }

    def placeholder(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            value = value.detach()  # an object of our own
            self._note(value, self.recording.graph.placeholder(f"input_{len(self.nodes)}"))
        return value

    def output(self, result: Any) -> None:
        tensors = result if isinstance(result, Tensor) else tensors_in(result)
        self.recording.graph.output(self._as_nodes(tensors))

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not self.is_on:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        before = (self._as_nodes(args), self._as_nodes(kwargs))
        result = func(*args, **kwargs)
        if name == "__bool__" and id(args[0]) in self.nodes:
            self.recording.branches.append(self.stack[-1] if self.stack else "")
        if _has_tensor(result):
            self.add(*_target(func, name), *before, result)
        elif name == "__setitem__":
            self.add("call_function", operator.setitem, *before, args[0])
        if name not in _WITHOUT_VALUES and not _has_tensor(result) and self._computed((args, kwargs)):
            owner = self.stack[-1] if self.stack else ""
            self.recording.values.append(module_and_line(self.model, owner, line_here(self.outermost)))
        return result

    def _computed(self, values: Any) -> bool:
        """Whether a result of the network is among them."""
        return any(id(value) in self.nodes for value in tree_leaves(values))

    @property
    def is_on(self) -> bool:
        return not self.inside_leaf and threading.get_ident() == self.thread

    def call(self, call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Instead of `nn.Module.__call__`."""
        name = self.modules.get(id(module))
        if not self.is_on or name is None:
            return call(module, *args, **kwargs)
        if not (name and self.is_leaf(module, name)):
            self.stack.append(name)
            result = call(module, *args, **kwargs)
            self.stack.pop()
            return result
        self.stack.append(name)
        before = (self._as_nodes(args), self._as_nodes(kwargs))
        self.inside_leaf = True
        try:
            result = call(module, *args, **kwargs)
        finally:
            self.inside_leaf = False
        self.add("call_module", name, *before, result)
        self.stack.pop()
        return result

    def apply(self, function: Any, apply: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Instead of `torch.autograd.Function.apply`, which no mode sees."""
        if not self.is_on:
            return apply(*args, **kwargs)
        before = (self._as_nodes(args), self._as_nodes(kwargs))
        self.inside_leaf = True
        try:
            result = apply(*args, **kwargs)
        finally:
            self.inside_leaf = False
        self.add("call_function", function, *before, result)
        return result

    def add(self, op: str, target: Any, args: Any, kwargs: Any, result: Any) -> None:
        node = self.recording.graph.create_node(op, target, tuple(args), dict(kwargs))
        node.meta["nn_module_stack"] = dict.fromkeys(self.stack)
        node.meta["line"] = line_here(self.outermost)
        if isinstance(result, Tensor):
            self._note(result, node)
            return
        for place, part in enumerate(result if isinstance(result, list | tuple) else tree_leaves(result)):
            if isinstance(part, Tensor):
                self._note(part, self.recording.graph.call_function(operator.getitem, (node, place)))

    def _note(self, tensor: Tensor, node: fx.Node) -> None:
        self.alive.append(tensor)
        self.nodes[id(tensor)] = node
        self.recording.shapes[node.name] = () if is_lazy(tensor) else tuple(tensor.shape)

    def _as_nodes(self, values: Any) -> Any:
        return tree_map(self._as_node, values)

    def _as_node(self, value: Any) -> Any:
        if isinstance(value, torch.Size):
            return tuple(value)
        if not isinstance(value, Tensor):
            return value if isinstance(value, bool | int | float | str | None | torch.dtype) else None
        if id(value) not in self.nodes:  # a parameter, or a tensor that nobody saw coming
            name = self.attributes.get(id(value), "unknown")
            self._note(value, self.recording.graph.create_node("get_attr", name))
        return self.nodes[id(value)]


@contextmanager
def _noting(recorder: _Recorder) -> Iterator[None]:
    """Calls of modules and of functions with a gradient of their own pass by the recorder."""
    call, apply = nn.Module.__call__, vars(torch.autograd.Function)["apply"]

    def noted_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return recorder.call(call, module, args, kwargs)

    def noted_apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        return recorder.apply(function, partial(apply.__func__, function), args, kwargs)

    nn.Module.__call__ = noted_call  # type: ignore[method-assign]
    torch.autograd.Function.apply = classmethod(noted_apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.Module.__call__ = call  # type: ignore[method-assign]
        torch.autograd.Function.apply = apply  # type: ignore[method-assign]


def _target(func: Any, name: str) -> tuple[str, Any]:
    """A call as symbols would have noted it: `x + y` is `operator.add`, `x.view()` a method."""
    if name == "__get__":  # x.T and the like
        return "call_function", getattr
    bare = name.strip("_") if name.startswith("__") else ""
    if bare and hasattr(operator, bare):
        return "call_function", getattr(operator, bare)
    if getattr(torch.Tensor, name, None) is func:
        return "call_method", name
    return "call_function", func


def tensors_in(result: Any) -> list[Tensor]:
    """The tensors of what a network gives: of tuples, dicts, and objects that have them as attributes."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, Mapping):
        parts: Any = result.values()
    elif isinstance(result, list | tuple):
        parts = result
    else:
        parts = vars(result).values() if hasattr(result, "__dict__") and not callable(result) else ()
    return [tensor for part in parts for tensor in tensors_in(part)]


def _has_tensor(result: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(result))
