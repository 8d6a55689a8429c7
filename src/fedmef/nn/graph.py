"""Follows a network's forward(): with symbols, or by running an example where they fail."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from fedmef.errors import ConversionError
from fedmef.nn.facts import GraphReader, NetworkGraph
from fedmef.nn.kinds import is_plain_layer, is_plain_norm
from fedmef.nn.place import where
from fedmef.nn.record import record


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
    return GraphReader(model, graph, is_left_alone, recorded).facts(tuple(branches))


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
