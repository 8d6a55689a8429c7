"""What `sparsify` must know of a network, read off the graph of its calls."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torch import fx, nn

from fedmef.nn.calls import (
    IN_PLACE_OPERATORS,
    call_name,
    is_input_read_later,
    is_size,
    names_gate,
    own_call,
    owner_of,
    place_of,
    tensors_of,
    walk_back,
)
from fedmef.nn.functionals import SAVING_VERSIONS
from fedmef.nn.kinds import BATCHNORMS, LAYERS, OTHER_LAYERS, is_plain_layer, is_plain_norm
from fedmef.nn.own_layer import CALLS, OwnCall

_LAYER_CALLS = {
    "conv1d", "conv2d", "conv3d", "conv_transpose2d", "linear", "bilinear", "matmul", "bmm", "einsum",
    "scaled_dot_product_attention",
}  # fmt: skip
_RECTIFIERS = (
    "relu", "relu_", "relu6", "leakyrelu", "leaky_relu", "prelu", "silu", "swish", "gelu", "elu", "celu",
    "selu", "mish", "hardswish", "hard_swish", "hardtanh", "clamp", "clamp_", "norm",
)  # fmt: skip
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


class GraphReader:
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
            and (recorded or is_input_read_later(node))
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
                function = call_name(node)
                functionals = functionals or function in SAVING_VERSIONS
                owner = owner_of(node)
                if function == "batch_norm" and isinstance(self.modules.get(owner), BATCHNORMS):
                    norms.setdefault(owner, []).append(node)
                elif function in _LAYER_CALLS or function == "batch_norm":
                    calls.append(f"{function} in {place_of(node, self.model)}")
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
            products=any(
                call_name(node) in _PRODUCTS and len(tensors_of(node)) > 1 for node in self.graph.nodes
            ),
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
        owner = owner_of(node)
        if node.op != "call_function" or call_name(node) not in CALLS or not owner:
            return None
        module = self.modules.get(owner)
        return owner if isinstance(module, LAYERS) and not is_plain_layer(module) else None

    def _own_calls(self) -> dict[str, OwnCall]:
        """How layers with a forward() of their own call the function, if they use their weight as it is."""
        found: dict[str, set[OwnCall | None]] = {}
        for node in self.graph.nodes:
            if node.op == "call_function" and (name := self._layer(node)) is not None:
                found.setdefault(name, set()).add(own_call(node, name, self.modules[name]))
        calls = {name: options.pop() for name, options in found.items() if len(options) == 1}
        return {name: call for name, call in calls.items() if call is not None}

    def _reads(self, user: fx.Node, parameter: str) -> bool:
        """Whether a call reads a parameter for another purpose than its layer's own."""
        return not is_size(user) and f"{self._layer(user)}" != parameter.rpartition(".")[0]

    def _is_layer(self, node: fx.Node) -> bool:
        return self._layer(node) is not None

    def _is_other_layer(self, node: fx.Node) -> bool:
        """A layer that stays as it is: one of another kind, or a function."""
        if node.op == "call_module":
            return isinstance(self._module(node), OTHER_LAYERS)
        return node.op in ("call_function", "call_method") and call_name(node) in _LAYER_CALLS

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
            between.add(str(source.target) if source.op == "call_module" else call_name(source))
            return False

        walk_back(tensors_of(node), stop)
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
                others.add(call_name(source))
                return True
            return self._is_kind(source, _RECTIFIERS)

        output = next(node for node in self.graph.nodes if node.op == "output")
        walk_back(output.all_input_nodes, stop)
        if not found and not others:
            return layers[-1:]
        return [name for name in layers if name in found]

    def _is_kind(self, node: fx.Node, kinds: Iterable[str]) -> bool:
        """Whether a call's or a module's name is, or ends with, one of these."""
        module = self._module(node)
        name = call_name(node) if module is None else type(module).__name__
        return name.lower().endswith(tuple(kinds)) or name.lower().startswith(("batchnorm", "groupnorm"))

    def _gates(self) -> list[fx.Node]:
        """Sigmoids and the like whose result multiplies something else."""
        products = [
            node for node in self.graph.nodes if call_name(node) in _PRODUCTS and len(tensors_of(node)) > 1
        ]
        gates = [self._gate_behind(side) for product in products for side in tensors_of(product)]
        return [gate for gate in gates if gate is not None]

    def _gate_behind(self, side: fx.Node) -> fx.Node | None:
        """The sigmoid that a factor comes from, through views only."""
        while not names_gate(self._kind(side)):
            if call_name(side) not in _VIEWS or not tensors_of(side):
                return None
            side = tensors_of(side)[0]
        return side

    def _kind(self, node: fx.Node) -> str:
        module = self._module(node)
        return call_name(node) if module is None else type(module).__name__

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

        walk_back(tensors_of(gate), stop)
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
                walk_back(tensors_of(node)[:1], stop)

        def needs_copy(node: fx.Node) -> bool:
            taken = tensors_of(node)[0]
            alone = self._is_layer(taken) and len(taken.users) == 1
            return (node in changed or taken in changed) and not alone

        return frozenset(name for name, nodes in norms.items() if any(needs_copy(node) for node in nodes))

    def _is_in_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return str(node.target) in self.in_place
        if node.op not in ("call_function", "call_method"):
            return False
        name = call_name(node)
        if (
            (name.endswith("_") and not name.endswith("__"))
            or name in IN_PLACE_OPERATORS
            or "out" in node.kwargs
        ):
            return True
        asked = any(value is True for value in node.args[1:]) and self._is_kind(node, _RECTIFIERS)
        return bool(node.kwargs.get("inplace")) or asked

    def _may_alias(self, node: fx.Node) -> bool:
        module = self._module(node)
        if module is not None:
            return isinstance(module, _VIEW_MODULES) or self.is_left_alone(str(node.target))
        return call_name(node) in _VIEWS or self._is_in_place(node)
