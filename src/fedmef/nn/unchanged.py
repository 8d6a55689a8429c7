"""Models that stay as they are: after an error, and after a run that is only a look."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

from fedmef.nn.trace import modes_kept


@contextmanager
def unchanged_on_error(model: nn.Module) -> Iterator[None]:
    """An error in the block leaves every module as it was: its class, attributes, hooks, parameters, parts.

    Values of weights are not copied: nothing here may write to them.
    """
    before = {module: (type(module), _shallow(vars(module))) for module in _in_python(model)}
    try:
        yield
    except BaseException:
        for module, (kind, attributes) in before.items():
            module.__class__ = kind
            _restore(vars(module), attributes)
        raise


@contextmanager
def only_looking(model: nn.Module) -> Iterator[None]:
    """Modes, buffers and the random generators are after the block what they were before."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers() if not is_lazy(buffer)]
    names = {module: dict(module._buffers) for module in _in_python(model)}
    drawn = random.getstate(), np.random.get_state()  # noqa: NPY002  (a user's code may use it)
    with torch.random.fork_rng(devices=[]), modes_kept(model):
        try:
            yield
        finally:
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])  # noqa: NPY002
            for module, own in names.items():
                module._buffers.update(own)
            with torch.no_grad():
                for buffer, value in buffers:
                    if buffer.dtype == value.dtype and buffer.shape == value.shape:
                        buffer.copy_(value)
                    else:
                        buffer.data = value


def _in_python(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that are not compiled by TorchScript: nothing of those can change."""
    return (module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule))


def _shallow(attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (value, {key: _kept(part) for key, part in value.items()} if isinstance(value, dict) else None)
        for name, value in attributes.items()
    }


def _kept(value: Any) -> Any:
    """A parameter without a shape is given one in place, so a copy is kept of it."""
    if not isinstance(value, UninitializedParameter | UninitializedBuffer):
        return value
    kind: Any = type(value)
    return kind(value.requires_grad, device=value.device, dtype=value.dtype)


def _restore(attributes: dict[str, Any], before: dict[str, Any]) -> None:
    attributes.clear()
    for name, (value, parts) in before.items():
        if parts is not None:
            value.clear()
            value.update(parts)
        attributes[name] = value
