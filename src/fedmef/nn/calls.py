"""Single calls of a traced network: what they are named, what they read, and who makes them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import fx, nn

from fedmef.nn.own_layer import OwnCall
from fedmef.nn.pooling import pair

_GATES = ("sigmoid", "sigmoid_", "hardsigmoid", "hard_sigmoid", "softmax", "tanh", "h_sigmoid", "hsigmoid")
IN_PLACE_OPERATORS = {
    f"i{name}"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
} | {"setitem"}


def walk_back(nodes: Iterable[fx.Node], stop: Callable[[fx.Node], bool]) -> None:
    """Visit each node once, and go on to what it reads unless told to stop."""
    waiting, seen = list(nodes), set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            if not stop(node):
                waiting += tensors_of(node)


def tensors_of(node: fx.Node) -> list[fx.Node]:
    """The tensors that a call computes with, without sizes; a BatchNorm's function also reads parameters."""
    tensors = [source for source in node.all_input_nodes if not is_size(source)]
    return tensors[:1] if call_name(node) == "batch_norm" else tensors


def own_call(node: fx.Node, name: str, module: nn.Module) -> OwnCall | None:
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


def is_size(node: fx.Node) -> bool:
    """Whether a call gives numbers that follow from shapes."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = call_name(node)
    if name in ("size", "dim", "numel") or (name == "getattr" and node.args[1:] in (("shape",), ("ndim",))):
        return True
    arithmetic = getattr(node.target, "__module__", None) == "_operator"
    return arithmetic and bool(node.all_input_nodes) and all(map(is_size, node.all_input_nodes))


def names_gate(name: str) -> bool:
    """Whether a call or a module of this name gives numbers between 0 and 1, or -1 and 1."""
    return name.lower().endswith(_GATES)


def call_name(node: fx.Node) -> str:
    """That of a function or a method, or of a module in the network."""
    return str(getattr(node.target, "__name__", node.target))


def is_input_read_later(node: fx.Node) -> bool:
    """Whether what a call reads first is read again after it."""
    return any(node < user for user in node.all_input_nodes[0].users)


def owner_of(node: fx.Node) -> str:
    """The module whose forward() makes a call, "" for the network itself."""
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {}
    return list(stack)[-1] if stack else ""


def place_of(node: fx.Node, model: nn.Module) -> str:
    """For people: whose forward() makes a call."""
    return f"{owner_of(node) or type(model).__name__}.forward()"
