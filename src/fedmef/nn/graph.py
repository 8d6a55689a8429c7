"""What `sparsify` must know of a network: the order of its layers, and what feeds each BatchNorm."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from fedmef.errors import ConversionError, UserError
from fedmef.nn.functionals import SAVING_VERSIONS

BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
# Calls in forward() that module swapping cannot reach and that no saving version can answer.
UNREACHABLE = {"relu_", "relu6_", "conv2d", "linear", "batch_norm"}
# Nothing of ours is in place, so a network that counts on it would compute something else.
_OVERWRITES = "it works in place on a tensor that may be read again; set inplace=False"


@dataclass(frozen=True)
class NetworkGraph:
    """The facts, by module name.

    Attributes:
        layers: convolutions and linear layers in order of execution.
        feeds: for each BatchNorm the layers (or modules that are left alone) whose outputs reach it with no
            other in between, and None if the network's own input does.
        functionals: forward() calls F.relu or the like.
        before_classifier: what the last layer's input passes since the layers before it: modules by name, and
            functions.
    """

    layers: tuple[str, ...]
    feeds: dict[str, frozenset[str | None]]
    functionals: bool
    before_classifier: frozenset[str] = frozenset()


def trace_network(model: nn.Module, is_left_alone: Callable[[str], bool]) -> NetworkGraph:
    """Follow `model.forward()` symbolically; modules that are left alone are not looked into."""
    try:
        graph = _Tracer(is_left_alone).trace(model)
    except Exception as error:  # user code runs here, so it may raise anything
        raise ConversionError(
            f"sparsify cannot follow {type(model).__name__}.forward(): {error}. Move control flow that "
            "depends on the data out of it, or name the module that has it in skip=[...]"
        ) from error
    modules = dict(model.named_modules())
    layers: list[str] = []
    feeds: dict[str, frozenset[str | None]] = {}
    functionals = False
    for node in graph.nodes:
        if node.op == "call_module":
            name, module = str(node.target), modules[str(node.target)]
            if getattr(module, "inplace", False) and not is_left_alone(name) and _is_input_read_later(node):
                raise UserError(f"sparsify cannot convert '{name}': {_OVERWRITES}")
            if isinstance(module, nn.Conv2d | nn.Linear) and name not in layers:
                layers.append(name)
            elif isinstance(module, BATCHNORMS):
                feeds[name] = feeds.get(name, frozenset()) | _feeding_layers(node, modules, is_left_alone)
        elif node.op in ("call_function", "call_method"):
            function = str(getattr(node.target, "__name__", node.target))
            if function in UNREACHABLE:
                raise UserError(
                    f"sparsify cannot convert the call of {function} in {_place(node, model)}: "
                    "use a module, or an assignment that is not in place"
                )
            if node.kwargs.get("inplace") and (function not in SAVING_VERSIONS or _is_input_read_later(node)):
                raise UserError(
                    f"sparsify cannot convert the call of {function} in {_place(node, model)}: {_OVERWRITES}"
                )
            functionals = functionals or function in SAVING_VERSIONS
    last = next((node for node in reversed(graph.nodes) if layers and node.target == layers[-1]), None)
    passed = _since_layers(last, modules)[1] if last is not None else frozenset()
    return NetworkGraph(tuple(layers), feeds, functionals, passed)


class _Tracer(fx.Tracer):
    def __init__(self, is_left_alone: Callable[[str], bool]) -> None:
        super().__init__()
        self.is_left_alone = is_left_alone

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        leaf = isinstance(m, (nn.Conv2d, nn.Linear, *BATCHNORMS)) or self.is_left_alone(module_qualified_name)
        return leaf or super().is_leaf_module(m, module_qualified_name)


def _feeding_layers(
    batchnorm: fx.Node, modules: dict[str, nn.Module], is_left_alone: Callable[[str], bool]
) -> frozenset[str | None]:
    return _since_layers(batchnorm, modules, is_left_alone)[0]


def _since_layers(
    node: fx.Node,
    modules: dict[str, nn.Module],
    is_left_alone: Callable[[str], bool] = lambda name: False,
) -> tuple[frozenset[str | None], frozenset[str]]:
    """The layers (or modules that are left alone) whose outputs reach a node, and what lies in between.

    None among the layers is the network's own input.
    """
    found: set[str | None] = set()
    between: set[str] = set()
    seen: set[fx.Node] = set()
    waiting = list(node.all_input_nodes)
    while waiting:
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        name = str(getattr(source.target, "__name__", source.target))
        if source.op in ("placeholder", "get_attr"):
            found.add(None)
        elif source.op == "call_module" and (
            isinstance(modules[name], nn.Conv2d | nn.Linear) or is_left_alone(name)
        ):
            found.add(name)
        else:
            between.add(name)
            waiting += source.all_input_nodes
    return frozenset(found), frozenset(between)


def _is_input_read_later(node: fx.Node) -> bool:
    return any(node < user for user in node.all_input_nodes[0].users)


def _place(node: fx.Node, model: nn.Module) -> str:
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    return f"{list(stack)[-1] if stack else type(model).__name__}.forward()"
