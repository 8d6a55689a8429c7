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
from torch.func import functional_call
from torch.fx.node import map_arg

from fedmef.errors import NetworkError, UserError
from fedmef.nn import functionals
from fedmef.nn.describe import array_spec, describe, float_name
from fedmef.nn.layers import SparseConv2d, sparse_layers
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
    for name, parameter in model.named_parameters():
        float_name(parameter, name)  # its error says more than PyTorch's would
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
        trace = _Trace(model, batch)
        operations = trace.operations()
        if _differs_in_training(model, trace.graph):
            operations += (_training(model, operations, classes),)
        arrays = {name for operation in operations for name in operation.arrays()}
        network = Network(images, operations, tuple(name for name in frozen if name in arrays))
    except (NetworkError, _UntraceableError) as error:
        network = Network(images, (_whole(model, str(error), classes),), frozen)
    if hidden := sparse_layers(model).keys() - network.sparse_layers.keys():
        assert network.opaque is not None
        raise UserError(
            f"the sparse layer '{min(hidden)}' cannot be described as data ({network.opaque.description}): "
            "no method could adjust it"
        )
    if network.opaque is None:
        _check_same(model, network, batch)
    return network


def _whole(model: nn.Module, reason: str, classes: int) -> Opaque:
    own = {name: array_spec(name, tensor, model) for name, tensor in model.state_dict().items()}
    description = f"{type(model).__name__}: {reason}"[:200]
    return Opaque(name="network", inputs=(INPUT,), description=description, shape=(classes,), own=own)


def _differs_in_training(model: nn.Module, graph: fx.Graph) -> bool:
    """Whether forward() asks if it is training, as stochastic depth does; it was traced while it is not.

    Or train() is its own, and leaves some modules as they are, such as BatchNorms whose statistics stay.
    """
    try:
        model.train()
        left_out = not all(module.training for module in model.modules())
        return left_out or str(_Tracer().trace(model)) != str(graph)
    except Exception:  # user code runs here, so it may raise anything
        return True
    finally:
        model.eval()


def _training(model: nn.Module, operations: tuple[Operation, ...], classes: int) -> Opaque:
    """Says that its own code must train this network; its arrays are those that only training uses."""
    known = {name for operation in operations for name in operation.arrays()}
    own = {
        name: array_spec(name, tensor, model)
        for name, tensor in model.state_dict().items()
        if name not in known
    }
    return Opaque(
        name="in_training",
        inputs=(operations[-1].name,),
        description=f"{type(model).__name__}: forward() does something else in training",
        shape=(classes,),
        own=own,
    )


def _check_same(model: nn.Module, network: Network, batch: Tensor) -> None:
    """In double precision: a deep network may blow up a rounding beyond any tolerance."""
    executed, batch = NetworkModule(network), batch.double()
    load_state(executed, network, module_state(model, network))
    exact = {
        name: tensor.double() for name, tensor in model.state_dict().items() if tensor.is_floating_point()
    }
    logits = functional_call(model, exact, batch)
    difference = (executed.double().eval()(batch) - logits).abs().max()
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


class _Trace:
    """One network on its way from a graph of PyTorch calls to a list of operations."""

    def __init__(self, model: nn.Module, batch: Tensor) -> None:
        self.model, self.modules = model, dict(model.named_modules())
        self.compact = functionals.are_saving(model)
        try:
            self.graph = _Tracer().trace(model)
            results = _Results(model, self.graph)
            with torch.random.fork_rng(devices=[]):
                results.run(batch)
        except Exception as error:  # user code runs here, so it may raise anything
            raise _UntraceableError(" ".join(str(error).split())[:150]) from error
        self.shapes, self.others = results.shapes, results.others
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
            description = str(getattr(node.target, "__name__", node.target))
        shape = self.shapes[node.name][1:] or (1,)
        return Opaque(name=node.name, inputs=inputs, description=description[:200], shape=shape, own=own)

    def _shape(self, name: str, node: fx.Node) -> Shape:
        return self.shapes[node.all_input_nodes[0].name]


def _argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _without(kwargs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in names}
