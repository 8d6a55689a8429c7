"""The networks by name: plain PyTorch, dense; `fedmef.nn.sparsify` makes them sparse."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

from fedmef.errors import UserError, unknown_name
from fedmef.experiment.names import load_object, own_name
from fedmef.experiment.randomness import derive_seed
from fedmef.models.mobilenet_v2 import mobilenet_v2
from fedmef.models.resnet import STEMS, resnet18, resnet34, resnet50
from fedmef.models.small_cnn import small_cnn

__all__ = [
    "MODELS",
    "build_model",
    "find_builder",
    "mobilenet_v2",
    "resnet18",
    "resnet34",
    "resnet50",
    "small_cnn",
]

Builder = Callable[..., nn.Module]

DEFAULT_STEM = "cifar"


def _all_stems(build: Builder) -> Mapping[str, Builder]:
    return {stem: partial(build, stem=stem) for stem in STEMS}


# A network's name, then its stem.
MODELS: Mapping[str, Mapping[str, Builder]] = {
    "resnet18": _all_stems(resnet18),
    "resnet34": _all_stems(resnet34),
    "resnet50": _all_stems(resnet50),
    "mobilenet_v2": _all_stems(mobilenet_v2),
    "small_cnn": {"cifar": small_cnn},
}


def build_model(
    name: str,
    *,
    classes: int,
    channels: int,
    width: int | None = None,
    stem: str | None = DEFAULT_STEM,
    seed: int,
) -> nn.Module:
    """The network `name` with the weights that `seed` decides; PyTorch's global generator stays as it was.

    `width` is the number of channels of the first stage or stem; None is the published one. A name like
    "package.module:function" builds a network of the user's own, called with `classes` and `channels`.
    """
    for field, value in (("classes", classes), ("channels", channels), ("width", width)):
        if value is not None and value < 1:
            raise UserError(f"{field} is {value}: a network needs at least 1")
    builder = find_builder(name, width, stem)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that would seed the accelerators' generators as well.
        torch.default_generator.manual_seed(derive_seed(seed, "model"))
        network = _called(name, builder, classes, channels)
    if not isinstance(network, nn.Module):
        raise UserError(f"model '{name}' returned {type(network).__name__}: it must return a torch.nn.Module")
    return network


def _called(name: str, builder: Builder, classes: int, channels: int) -> object:
    """What the builder gives; code of the user's own may raise anything."""
    if ":" not in name:
        return builder(classes=classes, channels=channels)
    try:
        return builder(classes=classes, channels=channels)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"model '{name}': called with classes={classes} and channels={channels}, it raised "
            f"{type(error).__name__}: {error} (--debug shows where)"
        ) from error


def find_builder(name: str, width: int | None = None, stem: str | None = DEFAULT_STEM) -> Builder:
    """What builds the network `name`, given classes and channels; raises `UserError` when there is none."""
    return _own_builder(name, width, stem) if ":" in name else _table_builder(name, width, stem)


def _table_builder(name: str, width: int | None, stem: str | None) -> Builder:
    if name not in MODELS:
        raise unknown_name("model", name, MODELS, own_name(name))
    stems = MODELS[name]
    chosen = stem or DEFAULT_STEM
    if chosen not in stems:
        raise UserError(f"stem = '{chosen}': {name} has only {', '.join(stems)}; leave it out")
    return stems[chosen] if width is None else partial(stems[chosen], width=width)


def _own_builder(path: str, width: int | None, stem: str | None) -> Builder:
    if width is not None or stem not in (None, DEFAULT_STEM):
        raise UserError(f"model '{path}' is your own: width and stem are up to its function, leave them out")
    function = load_object("model", path)
    if isinstance(function, nn.Module):
        raise UserError(
            f"model '{path}' is a network already: name its class, or a function that builds it anew from "
            "classes and channels"
        )
    if not callable(function):
        raise UserError(
            f"model '{path}' is {type(function).__name__}: it must be a function or a class that takes "
            "classes and channels"
        )
    try:
        inspect.signature(function).bind(classes=0, channels=0)
    except TypeError as error:
        raise UserError(
            f"model '{path}' cannot be called with the keywords classes and channels: {error}; "
            "write a function of these two that returns it"
        ) from error
    return function
