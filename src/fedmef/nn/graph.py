"""What `sparsify` must know of a network: the order of its layers, what feeds each BatchNorm, its ends."""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from fedmef.errors import ConversionError
from fedmef.nn import batchnorm
from fedmef.nn.functionals import SAVING_VERSIONS
from fedmef.nn.own_layer import CALLS, OwnCall
from fedmef.nn.pooling import pair
from fedmef.nn.record import record

BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
LAYERS = (nn.Conv2d, nn.Linear)
# Layers of other kinds, which stay as they are; what comes after one of them is no classifier's input.
OTHER_LAYERS = (
    nn.modules.conv._ConvNd,
    nn.Bilinear,
    nn.RNNBase,
    nn.MultiheadAttention,
    torch.jit.ScriptModule,
)
_LAYER_CALLS = {
    "conv1d", "conv2d", "conv3d", "conv_transpose2d", "linear", "bilinear", "matmul", "bmm", "einsum",
    "scaled_dot_product_attention",
}  # fmt: skip
_PLAIN_NORMS = {
    nn.BatchNorm1d.forward,
    nn.BatchNorm2d.forward,
    batchnorm.BatchNorm1d.forward,
    batchnorm.BatchNorm2d.forward,
}
_RECTIFIERS = (
    "relu", "relu_", "relu6", "leakyrelu", "leaky_relu", "prelu", "silu", "swish", "gelu", "elu", "celu",
    "selu", "mish", "hardswish", "hard_swish", "hardtanh", "clamp", "clamp_", "norm",
)  # fmt: skip
_GATES = ("sigmoid", "sigmoid_", "hardsigmoid", "hard_sigmoid", "softmax", "tanh", "h_sigmoid", "hsigmoid")
_PRODUCTS = {"mul", "mul_", "imul", "rmul", "multiply"}
_POOLS = {
    "mean", "amax", "sum", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "AvgPool2d",
    "AdaptiveAvgPool2d", "AdaptiveMaxPool2d",
}  # fmt: skip
# What may return its input, or a part of its memory.
_VIEWS = {
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "t", "chunk",
    "split", "getitem", "getattr", "narrow", "select", "expand", "expand_as", "view_as", "contiguous", "to",
    "float", "type", "type_as", "detach", "unbind", "movedim", "swapaxes", "dropout", "dropout2d", "unfold",
    "batch_norm", "tensor_split", "split_with_sizes", "alpha_dropout", "feature_dropout",
}  # fmt: skip
_VIEW_MODULES = (nn.Identity, nn.modules.dropout._DropoutNd, nn.Flatten, nn.Unflatten, *BATCHNORMS)


@dataclass(frozen=True)
class NetworkGraph:
    """The facts, by module name.

    Attributes:
        layers: convolutions and linear layers in order of execution.
        feeds: for each BatchNorm the layers (or modules that are left alone) whose outputs reach it with no
            other in between, and None if the network's own input does.
        functionals: forward() calls F.relu or the like.
        classifiers: the layers whose outputs reach the network's outputs with no other layer in between.
        before: for each of them what its input passes since the layers before it: modules by name, and
            functions.
        gates: layers that compute how much of each channel passes (squeeze-and-excitation).
        products: whether two tensors are multiplied, such as features and a gate.
        own: layers with a forward() of their own that uses their weight as it is, and how it does so.
        copied: BatchNorms that leave a copy if they go away: what they read or give is changed in place.
        in_place: modules that must stay in place, because what they overwrite is read again.
        calls: where forward() calls a layer's function, which no module can take the place of.
        read: parameters that forward() itself reads.
        branches: where forward() decides by values, if it was followed on an example.
    """

    layers: tuple[str, ...]
    feeds: dict[str, frozenset[str | None]]
    functionals: bool
    classifiers: tuple[str, ...] = ()
    before: dict[str, frozenset[str]] = field(default_factory=dict)
    gates: frozenset[str] = frozenset()
    products: bool = False
    own: dict[str, OwnCall] = field(default_factory=dict)
    copied: frozenset[str] = frozenset()
    in_place: frozenset[str] = frozenset()
    calls: tuple[str, ...] = ()
    read: frozenset[str] = frozenset()
    branches: tuple[str, ...] = ()


def trace_network(
    model: nn.Module, is_left_alone: Callable[[str], bool], example: Sequence[Any] | None = None
) -> NetworkGraph:
    """Follow `model.forward()`; modules that are left alone are not looked into.

    Symbols follow it if they can, otherwise an example: the arguments of one call.
    """
    stack: list[str] = []
    try:
        tracer = _Tracer(is_left_alone, stack)
        try:
            graph, branches, recorded = tracer.trace(model), list[str](), False
        except Exception:
            if example is None:
                raise
            stack.clear()
            recording = record(model, example, tracer.is_leaf_module, stack)
            graph, branches, recorded = recording.graph, recording.branches, True
    except Exception as error:  # user code runs here, so it may raise anything
        remedy = (
            "Give example=, a batch of images to run it on, or name the module in skip=[...]"
            if example is None
            else "Name the module that does so in skip=[...], or give another example="
        )
        raise ConversionError(
            f"sparsify cannot follow {type(model).__name__}.forward(): {where(error, model, stack)}. {remedy}"
        ) from error
    return _Reading(model, graph, is_left_alone, recorded).facts(tuple(branches))


def where(error: BaseException, model: nn.Module, stack: Sequence[str]) -> str:
    """The module and the line of an error in a user's code, and what it says."""
    modules, name = dict(model.named_modules()), stack[-1] if stack else ""
    kind = type(modules.get(name, model)).__name__
    text = " ".join(str(error).split()) or type(error).__name__
    line = _line(error)
    return f"in '{name}' ({kind}){line}: {text[:300]}" if name else f"in {kind}{line}: {text[:300]}"


def _line(error: BaseException) -> str:
    """`, file.py line 12`: the last place in somebody's own code."""
    ours, found, trace = (
        (str(Path(torch.__file__).parent), str(Path(__file__).parent)),
        "",
        error.__traceback__,
    )
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(ours):
            found = f", {Path(file).name} line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def is_plain_norm(module: nn.Module) -> bool:
    """Whether a BatchNorm does nothing else: its class has PyTorch's own forward(), or ours."""
    return isinstance(module, BATCHNORMS) and type(module).forward in _PLAIN_NORMS


def is_plain_layer(module: nn.Module) -> bool:
    """Whether a layer does nothing else: its class has PyTorch's own forward()."""
    return isinstance(module, LAYERS) and type(module).forward in (nn.Conv2d.forward, nn.Linear.forward)


class _Proxy(fx.Proxy):
    """Notes `x += y` as what it is; a plain one takes it for `x = x + y`."""


def _noted(target: Callable[[Any, Any], Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda proxy, other: proxy.tracer.create_proxy("call_function", target, (proxy, other), {})


for _operator in (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow):
    setattr(_Proxy, f"__{_operator.__name__}__", _noted(_operator))


class _Tracer(fx.Tracer):
    def __init__(self, is_left_alone: Callable[[str], bool], stack: list[str]) -> None:
        super().__init__()
        self.is_left_alone, self.stack = is_left_alone, stack

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if is_plain_layer(m) or is_plain_norm(m) or isinstance(m, torch.jit.ScriptModule):
            return True
        if self.is_left_alone(module_qualified_name):
            return True
        return super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        self.stack.append(self.path_of_module(m))
        result = super().call_module(m, forward, args, kwargs)
        self.stack.pop()
        return result


class _Reading:
    """Reads the facts off a graph of calls."""

    def __init__(
        self, model: nn.Module, graph: fx.Graph, is_left_alone: Callable[[str], bool], recorded: bool
    ) -> None:
        self.model, self.graph, self.is_left_alone = model, graph, is_left_alone
        self.modules = dict(model.named_modules())
        # An object that was changed in place has one name in a recording: nobody knows who reads it again.
        self.in_place = {
            str(node.target)
            for node in graph.nodes
            if node.op == "call_module"
            and getattr(self.modules[str(node.target)], "inplace", False) is True
            and not is_left_alone(str(node.target))
            and (recorded or _is_input_read_later(node))
        }

    def facts(self, branches: tuple[str, ...]) -> NetworkGraph:
        layers: list[str] = []
        norms: dict[str, list[fx.Node]] = {}
        functionals, calls = False, []
        for node in self.graph.nodes:
            module, layer = self._module(node), self._layer(node)
            if layer is not None:
                if layer not in layers:
                    layers.append(layer)
            elif isinstance(module, BATCHNORMS):
                norms.setdefault(str(node.target), []).append(node)
            elif node.op in ("call_function", "call_method"):
                function = _name(node)
                functionals = functionals or function in SAVING_VERSIONS
                owner = _owner(node)
                if function == "batch_norm" and isinstance(self.modules.get(owner), BATCHNORMS):
                    norms.setdefault(owner, []).append(node)
                elif function in _LAYER_CALLS or function == "batch_norm":
                    calls.append(f"{function} in {_place(node, self.model)}")
        norms = {name: nodes for name, nodes in norms.items() if self._can_go(name, nodes)}
        classifiers = self._classifiers(layers)
        last = {name: self._last_call(name) for name in classifiers}
        return NetworkGraph(
            layers=tuple(layers),
            feeds={
                name: frozenset().union(*(self._since_layers(node)[0] for node in nodes))
                for name, nodes in norms.items()
            },
            functionals=functionals,
            classifiers=tuple(classifiers),
            before={name: self._since_layers(node, look_inside=True)[1] for name, node in last.items()},
            gates=frozenset().union(*(self._layers_after_pooling(gate) for gate in self._gates())),
            products=any(_name(node) in _PRODUCTS and len(_inputs(node)) > 1 for node in self.graph.nodes),
            own=self._own_calls(),
            copied=self._copied(norms),
            in_place=frozenset(self.in_place),
            calls=tuple(dict.fromkeys(calls)),
            read=frozenset(
                str(node.target)
                for node in self.graph.nodes
                if node.op == "get_attr" and any(self._reads(user, str(node.target)) for user in node.users)
            ),
            branches=branches,
        )

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.modules[str(node.target)] if node.op == "call_module" else None

    def _can_go(self, name: str, nodes: list[fx.Node]) -> bool:
        """A BatchNorm whose class has its own forward() must call the function, once a call of the module."""
        return is_plain_norm(self.modules[name]) or (
            not self.is_left_alone(name) and all(node.op == "call_function" for node in nodes)
        )

    def _last_call(self, name: str) -> fx.Node:
        calls: list[fx.Node] = [node for node in self.graph.nodes if self._layer(node) == name]
        return calls[-1]

    def _layer(self, node: fx.Node) -> str | None:
        """The layer that a call is, or that a call in its own forward() makes it."""
        if node.op == "call_module":
            return str(node.target) if isinstance(self._module(node), LAYERS) else None
        owner = _owner(node)
        if node.op != "call_function" or _name(node) not in CALLS or not owner:
            return None
        module = self.modules.get(owner)
        return owner if isinstance(module, LAYERS) and not is_plain_layer(module) else None

    def _own_calls(self) -> dict[str, OwnCall]:
        """How layers with a forward() of their own call the function, if they use their weight as it is."""
        found: dict[str, set[OwnCall | None]] = {}
        for node in self.graph.nodes:
            if node.op == "call_function" and (name := self._layer(node)) is not None:
                found.setdefault(name, set()).add(_own_call(node, name, self.modules[name]))
        calls = {name: options.pop() for name, options in found.items() if len(options) == 1}
        return {name: call for name, call in calls.items() if call is not None}

    def _reads(self, user: fx.Node, parameter: str) -> bool:
        """Whether a call reads a parameter for another purpose than its layer's own."""
        return not _is_size(user) and f"{self._layer(user)}" != parameter.rpartition(".")[0]

    def _is_layer(self, node: fx.Node) -> bool:
        return self._layer(node) is not None

    def _is_other_layer(self, node: fx.Node) -> bool:
        """A layer that stays as it is: one of another kind, or a function."""
        if node.op == "call_module":
            return isinstance(self._module(node), OTHER_LAYERS)
        return node.op in ("call_function", "call_method") and _name(node) in _LAYER_CALLS

    def _since_layers(
        self, node: fx.Node, look_inside: bool = False
    ) -> tuple[frozenset[str | None], frozenset[str]]:
        """The layers (or modules that are left alone) whose outputs reach a node, and what lies in between.

        None among the layers is the network's own input.
        """
        found: set[str | None] = set()
        between: set[str] = set()

        def stop(source: fx.Node) -> bool:
            if source.op in ("placeholder", "get_attr"):
                found.add(None)
                return True
            left_alone = source.op == "call_module" and self.is_left_alone(str(source.target))
            if self._is_layer(source) or self._is_other_layer(source) or (left_alone and not look_inside):
                found.add(self._layer(source) or str(source.target))
                return True
            between.add(str(source.target) if source.op == "call_module" else _name(source))
            return False

        _walk_back(_inputs(node), stop)
        return frozenset(found), frozenset(between)

    def _classifiers(self, layers: list[str]) -> list[str]:
        """Layers that end the network; a rectifier or a norm after a layer says that it gives features.

        If nothing ends it in this way, as in SqueezeNet, the last layer counts.
        """
        found: set[str] = set()
        others: set[str] = set()

        def stop(source: fx.Node) -> bool:
            if (name := self._layer(source)) is not None:
                found.add(name)
                return True
            if self._is_other_layer(source):
                others.add(_name(source))
                return True
            return self._is_kind(source, _RECTIFIERS)

        output = next(node for node in self.graph.nodes if node.op == "output")
        _walk_back(output.all_input_nodes, stop)
        if not found and not others:
            return layers[-1:]
        return [name for name in layers if name in found]

    def _is_kind(self, node: fx.Node, kinds: Iterable[str]) -> bool:
        """Whether a call's or a module's name is, or ends with, one of these."""
        module = self._module(node)
        name = _name(node) if module is None else type(module).__name__
        return name.lower().endswith(tuple(kinds)) or name.lower().startswith(("batchnorm", "groupnorm"))

    def _gates(self) -> list[fx.Node]:
        """Sigmoids and the like whose result multiplies something else."""
        products = [node for node in self.graph.nodes if _name(node) in _PRODUCTS and len(_inputs(node)) > 1]
        gates = [self._gate_behind(side) for product in products for side in _inputs(product)]
        return [gate for gate in gates if gate is not None]

    def _gate_behind(self, side: fx.Node) -> fx.Node | None:
        """The sigmoid that a factor comes from, through views only."""
        while not _names_gate(self._kind(side)):
            if _name(side) not in _VIEWS or not _inputs(side):
                return None
            side = _inputs(side)[0]
        return side

    def _kind(self, node: fx.Node) -> str:
        module = self._module(node)
        return _name(node) if module is None else type(module).__name__

    def _layers_after_pooling(self, gate: fx.Node) -> set[str]:
        """The layers from a gate back to a pooling; none if one path does not come from one."""
        layers: set[str] = set()
        pooled: list[bool] = []

        def stop(source: fx.Node) -> bool:
            if source.op in ("placeholder", "get_attr"):
                pooled.append(source.op == "get_attr")
                return True
            if self._kind(source) in _POOLS or self._kind(source).lower().endswith("pool"):
                pooled.append(True)
                return True
            if (name := self._layer(source)) is not None:
                layers.add(name)
            return False

        _walk_back(_inputs(gate), stop)
        return layers if pooled and all(pooled) and len(layers) <= 4 else set()

    def _copied(self, norms: dict[str, list[fx.Node]]) -> frozenset[str]:
        """BatchNorms around which something is changed in place, where that could be seen elsewhere.

        It cannot where a layer's result is read by nobody but the BatchNorm.
        """
        changed: set[fx.Node] = set()

        def stop(source: fx.Node) -> bool:
            changed.add(source)
            return not self._may_alias(source)

        for node in self.graph.nodes:
            if self._is_in_place(node):
                _walk_back(_inputs(node)[:1], stop)

        def needs_copy(node: fx.Node) -> bool:
            taken = _inputs(node)[0]
            alone = self._is_layer(taken) and len(taken.users) == 1
            return (node in changed or taken in changed) and not alone

        return frozenset(name for name, nodes in norms.items() if any(needs_copy(node) for node in nodes))

    def _is_in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return str(node.target) in self.in_place
        if node.op not in ("call_function", "call_method"):
            return False
        name = _name(node)
        if (
            (name.endswith("_") and not name.endswith("__"))
            or name in _IN_PLACE_OPERATORS
            or "out" in node.kwargs
        ):
            return True
        asked = any(value is True for value in node.args[1:]) and self._is_kind(node, _RECTIFIERS)
        return bool(node.kwargs.get("inplace")) or asked

    def _may_alias(self, node: fx.Node) -> bool:
        module = self._module(node)
        if module is not None:
            return isinstance(module, _VIEW_MODULES) or self.is_left_alone(str(node.target))
        return _name(node) in _VIEWS or self._is_in_place(node)


_IN_PLACE_OPERATORS = {
    f"i{name}"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
} | {"setitem"}


def _walk_back(nodes: Iterable[fx.Node], stop: Callable[[fx.Node], bool]) -> None:
    """Visit each node once, and go on to what it reads unless told to stop."""
    waiting, seen = list(nodes), set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            if not stop(node):
                waiting += _inputs(node)


def _inputs(node: fx.Node) -> list[fx.Node]:
    """The tensors that a call computes with, without sizes; a BatchNorm's function also reads parameters."""
    tensors = [source for source in node.all_input_nodes if not _is_size(source)]
    return tensors[:1] if _name(node) == "batch_norm" else tensors


def _own_call(node: fx.Node, name: str, module: nn.Module) -> OwnCall | None:
    """The options of a call of `conv2d` or `linear` with the layer's weight and bias as they are, or None."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    bias = given.get("bias")
    own_weight = _is_parameter(given.get("weight"), f"{name}.weight")
    own_bias = bias is None if module.bias is None else _is_parameter(bias, f"{name}.bias")
    options: dict[str, Any] = {key: given[key] for key in names[3:] if key in given}
    if not own_weight or not own_bias or not all(_is_number(value) for value in options.values()):
        return None
    groups = options.pop("groups", 1)
    pairs = {key: pair(value) for key, value in options.items()}
    return OwnCall(**pairs, groups=groups)


def _is_parameter(value: Any, name: str) -> bool:
    return isinstance(value, fx.Node) and value.op == "get_attr" and value.target == name


def _is_number(value: Any) -> bool:
    parts = value if isinstance(value, Sequence) else [value]
    return all(isinstance(part, int) for part in parts)


def _is_size(node: fx.Node) -> bool:
    """Whether a call gives numbers that follow from shapes."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = _name(node)
    if name in ("size", "dim", "numel") or (name == "getattr" and node.args[1:] in (("shape",), ("ndim",))):
        return True
    arithmetic = getattr(node.target, "__module__", None) == "_operator"
    return arithmetic and bool(node.all_input_nodes) and all(map(_is_size, node.all_input_nodes))


def _names_gate(name: str) -> bool:
    return name.lower().endswith(_GATES)


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _is_input_read_later(node: fx.Node) -> bool:
    return any(node < user for user in node.all_input_nodes[0].users)


def _owner(node: fx.Node) -> str:
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    return list(stack)[-1] if stack else ""


def _place(node: fx.Node, model: nn.Module) -> str:
    return f"{_owner(node) or type(model).__name__}.forward()"
