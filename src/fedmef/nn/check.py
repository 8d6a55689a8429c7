"""Whether a converted network still does what its author wrote: its outputs against the original code's.

The original is given the weights that really convolve, normalised and with zeros, and its BatchNorms that
went away are told to change nothing. Then both must compute the same, in training and in evaluation: what
comes out, and what every layer reads, on its own scale, since little of the signal may be left at the end.
"""

import copy
import random
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedmef.errors import ConversionError
from fedmef.nn.features import remove_feature_norms
from fedmef.nn.kinds import LAYERS
from fedmef.nn.layers import sparse_layers
from fedmef.nn.own_layer import NAME
from fedmef.nn.record import tensors_in
from fedmef.nn.unchanged import only_looking

SAME = 1e-3  # of the largest output; kernels may differ, and depth makes more of it
SAME_DOUBLE = 1e-6

Seen = list[tuple[str, Tensor]]


def check_by_function(
    original: nn.Module, converted: nn.Module, removed: Iterable[str], inputs: Sequence[Any]
) -> None:
    """Raise `ConversionError` if the two differ. `original` is used up; `removed` names BatchNorms.

    In double precision if the network can: a deep one may blow up a rounding beyond any tolerance.
    """
    gone = [original.get_submodule(name) for name in removed]
    layers = [name for name, module in original.named_modules() if isinstance(module, LAYERS)]
    converted = copy.deepcopy(converted)
    remove_feature_norms(converted)  # they would hide a wrong scale
    doubled = _doubled(original, inputs)
    if doubled is not None:
        converted, inputs = converted.double(), doubled
    _give_weights(original, converted)
    for norm in gone:
        _silence(norm)
    ran = False
    for training in (False, True):
        results = []
        for model in (original, converted):
            with only_looking(model), torch.no_grad():
                model.train(training)
                for norm in gone:
                    norm.training = False
                _seed()
                results.append(_run(model, layers, inputs))
        expected, found = results
        ran = ran or not isinstance(expected, Exception)
        _compare(expected, found, training, SAME_DOUBLE if doubled is not None else _tolerance(original))
    if not ran:
        raise ConversionError("check: the network cannot run on the example")


def _seed() -> None:
    """The same draws for both, of whatever a user's code draws with."""
    torch.default_generator.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


def _doubled(original: nn.Module, inputs: Sequence[Any]) -> list[Any] | None:
    """The inputs in double precision, and so the network; None, and nothing changed, if that does not run."""
    kinds = {parameter.dtype for parameter in original.parameters()}
    if len(kinds) != 1:
        return None
    doubled = [
        value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for value in inputs
    ]
    original.double()
    with only_looking(original), torch.no_grad():
        if not isinstance(_run(original.eval(), (), doubled), Exception):
            return doubled
    original.to(kinds.pop())
    return None


def _tolerance(model: nn.Module) -> float:
    return max(SAME, *(20 * torch.finfo(parameter.dtype).eps for parameter in model.parameters()))


def _run(model: nn.Module, layers: Iterable[str], inputs: Sequence[Any]) -> Seen | Exception:
    """What each of the layers reads, call by call, and what comes out."""
    seen: Seen = []

    def note(name: str, layer: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            seen.append((f"what '{name}' reads", args[0].clone()))

    hooks = [model.get_submodule(name).register_forward_pre_hook(partial(note, name)) for name in layers]
    try:
        copies = copy.deepcopy(list(inputs))  # a network may write to its input
        outputs = tensors_in(model(*copies))
        return [*seen, *(("what comes out", output) for output in outputs)]
    except Exception as error:  # user code runs here, so it may raise anything
        return error
    finally:
        for hook in hooks:
            hook.remove()


def _compare(expected: Seen | Exception, found: Seen | Exception, training: bool, same: float) -> None:
    mode = "training" if training else "evaluation"
    if isinstance(expected, Exception):
        return  # it cannot run in this mode, whoever runs it
    if isinstance(found, Exception):
        raise ConversionError(f"sparsify checked its result: it cannot run in {mode}: {found}") from found
    if [(place, tensor.shape) for place, tensor in expected] != [(at, tensor.shape) for at, tensor in found]:
        raise ConversionError(f"sparsify checked its result: in {mode} it makes other calls")
    for (place, right), (_, tensor) in zip(expected, found, strict=True):
        if not right.is_floating_point() or not right.numel():
            continue
        finite = right.isfinite()
        difference = float((right - tensor)[finite].abs().amax()) if finite.any() else 0.0
        scale = float(right[finite].abs().amax()) if finite.any() else 0.0
        if not difference <= same * scale or not torch.equal(tensor.isfinite(), finite):
            raise ConversionError(
                f"sparsify checked its result: in {mode} {place} differs by {difference:.2g} from the "
                "original code with the same weights; please report this network"
            )


@torch.no_grad()
def _give_weights(original: nn.Module, converted: nn.Module) -> None:
    """The weights that convolve."""
    places = dict(original.named_modules())
    for name, layer in sparse_layers(converted).items():
        dense = original.get_submodule(name.removesuffix(f".{NAME}") if name not in places else name)
        assert isinstance(dense, nn.Conv2d | nn.Linear)
        dense.weight.copy_(layer.dense_weight().view_as(dense.weight))
        if layer.bias is not None:
            dense.bias = nn.Parameter(layer.bias.detach().clone())
        elif dense.bias is not None:
            dense.bias.zero_()


@torch.no_grad()
def _silence(norm: nn.Module) -> None:
    """Make a BatchNorm in evaluation give its input."""
    assert isinstance(norm, _BatchNorm)
    norm.eps = 0.0
    like = next(iter([*norm.parameters(), *norm.buffers()]), torch.zeros(1))
    norm.running_mean = torch.zeros(norm.num_features, dtype=like.dtype, device=like.device)
    norm.running_var = torch.ones_like(norm.running_mean)
    norm.track_running_stats = True
    if norm.weight is not None:
        norm.weight.fill_(1)
        norm.bias.zero_()
