"""From a PyTorch network to the same network as data, by tracing.

What cannot be described is `Opaque`: such a network trains on the torch backend with its own code. A network
that is described completely is also checked by function: its data, executed, must give what its code gives.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fedmef.errors import NetworkError, UserError
from fedmef.nn import functionals
from fedmef.nn.describe import array_spec, describe
from fedmef.nn.layers import SparseConv2d
from fedmef.nn.module import NetworkModule, load_state
from fedmef.sparsity.model import State
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import (
    AdaptiveAveragePool,
    Add,
    ArraySpec,
    Concatenate,
    Flatten,
    Opaque,
    Operation,
    Shape,
)

SAME = 1e-4  # relative difference between two ways to compute the same

_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
_RESHAPES = (torch.flatten, torch.reshape, "flatten", "view", "reshape")
_MEANS = (torch.mean, "mean")
_COPIES = (torch.Tensor.contiguous, "contiguous", "clone")
# A functional call, and the module that does the same with its arguments.
_FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    F.relu: nn.ReLU,
    torch.relu: nn.ReLU,
    "relu": nn.ReLU,
    F.relu6: nn.ReLU6,
    F.max_pool2d: nn.MaxPool2d,
    torch.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
}


def export_network(model: nn.Module, images: Input) -> Network:
    """What a network computes for these images; the model stays as it is.

    Raises `UserError` when it cannot take such images, or answers anything else than logits.
    """
    training = {module: module.training for module in model.modules()}
    try:
        return _export(model.eval(), images)
    finally:
        for module, was in training.items():
            module.training = was


def module_state(model: nn.Module, network: Network) -> State:
    """A model's arrays, by the names that its network has for them."""
    tensors = model.state_dict()
    return {name: tensors[name].detach().cpu().numpy().copy() for name in network.arrays}


@torch.no_grad()
def _export(model: nn.Module, images: Input) -> Network:
    batch = torch.rand(2, *images.shape, generator=torch.Generator().manual_seed(0)).sub_(0.5)
    with torch.random.fork_rng(devices=[]):
        try:
            logits = model(batch)
        except Exception as error:  # a user's own network may raise anything
            raise UserError(
                f"the network cannot take images of shape {list(images.shape)}: {error}"
            ) from error
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(batch):
        shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the network answers {shape} to 2 images: it must answer a row of numbers for each")
    classes = logits.shape[1]
    frozen = tuple(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    try:
        operations = _Trace(model, batch).operations()
        arrays = {name for operation in operations for name in operation.arrays()}
        network = Network(images, operations, tuple(name for name in frozen if name in arrays))
    except (NetworkError, _UntraceableError) as error:
        return Network(images, (_whole(model, str(error), classes),), frozen)
    if network.opaque is None:
        _check_same(model, network, batch, logits)
    return network


def _whole(model: nn.Module, reason: str, classes: int) -> Opaque:
    own = {name: array_spec(name, tensor, model) for name, tensor in model.state_dict().items()}
    description = f"{type(model).__name__}: {reason}"[:200]
    return Opaque(name="network", inputs=(INPUT,), description=description, shape=(classes,), own=own)


def _check_same(model: nn.Module, network: Network, batch: Tensor, logits: Tensor) -> None:
    executed = NetworkModule(network).eval()
    load_state(executed, network, module_state(model, network))
    difference = (executed(batch) - logits).abs().max()
    if not difference <= SAME * logits.abs().max().clamp(min=1e-3):
        raise UserError(
            f"{type(model).__name__} as data computes something else than its code (logits differ by "
            f"{float(difference):.2g}): this is a bug of fedmef's; please report it with the network"
        )


class _UntraceableError(Exception):
    """forward() has control flow, or something else that symbols cannot follow."""


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, SparseConv2d) or type(m).__module__.startswith("fedmef.nn.")
        return known or super().is_leaf_module(m, module_qualified_name)


class _Shapes(fx.Interpreter):
    """Runs a traced network and notes the shape of every result; only tensors have one."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(module, graph=graph)
        self.shapes: dict[str, Shape] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.shapes[n.name] = tuple(result.shape)
        return result


class _Trace:
    """One network on its way from a graph of PyTorch calls to a list of operations."""

    def __init__(self, model: nn.Module, batch: Tensor) -> None:
        self.model, self.modules = model, dict(model.named_modules())
        self.compact = functionals.are_saving(model)
        try:
            self.graph = _Tracer().trace(model)
            interpreter = _Shapes(model, self.graph)
            with torch.random.fork_rng(devices=[]):
                interpreter.run(batch)
        except Exception as error:  # user code runs here, so it may raise anything
            raise _UntraceableError(" ".join(str(error).split())[:150]) from error
        self.shapes = interpreter.shapes
        self.names: dict[fx.Node, str] = {}  # which result a node's is
        self.found: list[Operation] = []

    def operations(self) -> tuple[Operation, ...]:
        images = [node for node in self.graph.nodes if node.op == "placeholder"]
        if len(images) != 1:
            raise _UntraceableError(f"forward() takes {len(images)} arguments")
        self.names[images[0]] = INPUT
        for node in self.graph.nodes:
            if node.op in ("call_module", "call_function", "call_method", "get_attr"):
                self._follow(node)
        (result,) = next(node for node in self.graph.nodes if node.op == "output").args
        if not isinstance(result, fx.Node) or self.names.get(result) in (None, INPUT):
            raise _UntraceableError("forward() returns something else than one result")
        if self.found[-1].name != self.names[result]:
            raise _UntraceableError("the last call in forward() is not what it returns")
        return tuple(self.found)

    def _follow(self, node: fx.Node) -> None:
        if node.name not in self.shapes:
            return  # a number, such as a batch size; whoever uses it knows its shape
        inputs = tuple(self.names[source] for source in node.all_input_nodes if source in self.names)
        before = len(self.found)
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
        if isinstance(module, nn.Identity):
            return inputs[0]
        operation = describe(module, node.name, inputs, name, self._shape(inputs[0], node))
        return None if operation is None else self._add(operation)

    def _call(self, node: fx.Node, inputs: tuple[str, ...]) -> str | None:  # noqa: PLR0911
        shape, target, name = self.shapes[node.name], node.target, node.name
        sources = [
            self.shapes.get(source.name, ()) for source in node.all_input_nodes if source in self.names
        ]
        if target in _ADDITIONS and len(inputs) == 2 and sources == [shape, shape] and not node.kwargs:
            return self._add(Add(name=name, inputs=inputs))
        if target in _ADDITIONS and len(inputs) == 1 and node.args == (node.args[0],) * 2:
            return self._add(Add(name=name, inputs=inputs * 2))
        if target in (torch.cat, torch.concat) and _argument(node, 1, "dim", 0) in (1, 1 - len(shape)):
            taken = tuple(self.names[part] for part in node.args[0])  # type: ignore[union-attr, index]
            return self._add(Concatenate(name=name, inputs=taken))
        if len(inputs) != 1:
            return None
        if target in _COPIES:
            return inputs[0]
        flat = len(shape) == 2 and len(sources[0]) >= 2 and shape[0] == sources[0][0]
        if target in _RESHAPES and flat and shape[1] == math.prod(sources[0][1:]):
            return self._add(Flatten(name=name, inputs=inputs))
        if target in _MEANS and len(sources[0]) == 4 and shape in (sources[0][:2], (*sources[0][:2], 1, 1)):
            pooled = AdaptiveAveragePool(name=f"{name}.pooled", inputs=inputs, compact=self.compact)
            self._add(pooled)
            if len(shape) == 4:
                return pooled.name
            return self._add(Flatten(name=name, inputs=(pooled.name,)))
        if target in _FUNCTIONS:
            module = _FUNCTIONS[target](*node.args[1:], **_without(node.kwargs, "inplace", "return_indices"))
            operation = describe(module, name, inputs, "", sources[0], compact=self.compact)
            return None if operation is None else self._add(operation)
        return None

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
            description = str(getattr(node.target, "__name__", node.target))
        shape = self.shapes[node.name][1:] or (1,)
        return Opaque(name=node.name, inputs=inputs, description=description[:200], shape=shape, own=own)

    def _shape(self, name: str, node: fx.Node) -> Shape:
        return self.shapes[node.all_input_nodes[0].name]


def _argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _without(kwargs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in names}
