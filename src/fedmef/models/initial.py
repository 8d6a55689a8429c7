"""The model that an experiment begins with: built, made sparse by its method's recipe, exported as data."""

import warnings

import torch
from torch import nn

from fedmef.data.dataset import Statistics
from fedmef.errors import ConversionError, FedmefWarning, UserError
from fedmef.experiment.settings import Experiment
from fedmef.methods import find_method
from fedmef.models import build_model
from fedmef.nn.export import export_network, module_state
from fedmef.nn.prepare import prepare
from fedmef.nn.signal import check_signal
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Input, Network


def initial_model(
    experiment: Experiment, shape: tuple[int, int, int], classes: int, statistics: Statistics
) -> Model:
    """The first global model, for images of this shape that are normalised with these statistics."""
    module = prepared_module(experiment, shape[0], classes, shape)
    try:
        network = export_network(module, Input(shape, *statistics))
    except UserError as error:
        raise UserError(f"model '{experiment.model}': {error}") from error
    if network.classes != classes:
        raise UserError(
            f"model '{experiment.model}' answers {network.classes} numbers to an image: it must answer one "
            f"for each of the {classes} classes"
        )
    if wide := [name for name, spec in network.arrays.items() if spec.dtype == "float64"]:
        raise UserError(
            f"model '{experiment.model}': {wide[0]} is float64, and a federation trains float32; "
            "model.float() converts it"
        )
    _warn_of_no_signal(module, network, experiment.model)
    model = Model(network, module_state(module, network))
    for name in network.sparse_layers:
        model.center_filters(name)  # so that the smallest weights are those that matter least, from the start
    return model


def _warn_of_no_signal(module: nn.Module, network: Network, name: str) -> None:
    images = torch.randn(8, *network.input.shape, generator=torch.Generator().manual_seed(0))
    try:
        problems = check_signal(module, images, network.classes)
    except Exception:  # code of the user's own, which will say why on a device
        return
    if problems:
        more = f", and {len(problems) - 1} more layers" if len(problems) > 1 else ""
        warnings.warn(f"model '{name}' will hardly learn: {problems[0]}{more}", FedmefWarning, stacklevel=2)


def plain_network(experiment: Experiment, shape: tuple[int, int, int], classes: int) -> Network:
    """The experiment's network before a method prepares it, as data."""
    even = ((0.5,) * shape[0], (0.5,) * shape[0])
    try:
        return export_network(_built(experiment, shape[0], classes), Input(shape, *even))
    except UserError as error:
        raise UserError(f"model '{experiment.model}': {error}") from error


def prepared_module(
    experiment: Experiment, channels: int, classes: int, shape: tuple[int, int, int] | None = None
) -> nn.Module:
    """The same as a PyTorch module, which a network with opaque operations needs to be trained.

    `shape` is that of an image, for a network that symbols cannot follow.
    """
    recipe = find_method(experiment.method).recipe
    module = _built(experiment, channels, classes)
    images = None if shape is None else torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    try:
        return prepare(module, recipe, experiment, images)
    except ConversionError as error:
        raise UserError(f"model '{experiment.model}': {error}") from error


def _built(experiment: Experiment, channels: int, classes: int) -> nn.Module:
    return build_model(
        experiment.model,
        classes=classes,
        channels=channels,
        width=experiment.width,
        stem=experiment.stem,
        seed=experiment.seed,
    )
