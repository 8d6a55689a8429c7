"""A device that trains on noise, for measurements: what it needs does not depend on what it sees."""

import numpy as np

from fedmef.data.dataset import Statistics
from fedmef.device.training import Samples
from fedmef.experiment.settings import Experiment
from fedmef.methods import find_method
from fedmef.models.initial import initial_model
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Network
from fedmef.wire.broadcast import encode_broadcast
from fedmef.wire.job import Job

# Over an experiment's own settings. A tiny learning rate: few steps on noise shall not end in NaN.
ON_NOISE = {"accelerator": "cpu", "local_epochs": 1, "learning_rate": 1e-4}

MOST_MODELS = 8  # that are kept: building one and checking it takes seconds
_models: dict[tuple[object, ...], Model] = {}


def noise_samples(count: int, shape: tuple[int, ...], classes: int, steps: int = 1) -> Samples:
    """One batch of this many images, which an epoch goes over `steps` times."""
    images = np.random.default_rng(0).integers(256, size=(count, *shape), dtype=np.uint8)
    return Samples(images, np.arange(count) % classes, np.tile(np.arange(count), steps))


def noise_model(experiment: Experiment, shape: tuple[int, int, int], classes: int) -> Model:
    """The experiment's model for such images; methods with the same recipe share it."""
    even: Statistics = ((0.5,) * shape[0], (0.5,) * shape[0])
    if ":" in experiment.model + experiment.method:  # a user's own code, which may change
        return initial_model(experiment, shape, classes, even)
    recipe = find_method(experiment.method).recipe
    key = recipe, experiment.model_copy(update={"method": "fedavg", "batch_size": 1}), shape, classes
    if key not in _models:
        if len(_models) >= MOST_MODELS:
            _models.clear()
        _models[key] = initial_model(experiment, shape, classes, even)
    return _models[key]


def round_jobs(experiment: Experiment) -> list[Job]:
    """An ordinary round, and the one that exchanges most weights if there is any."""
    method = find_method(experiment.method)()
    every = [method.job(experiment, number) for number in range(experiment.rounds)]
    most = max(every, key=lambda job: job.adjustment_rate)
    return [every[0], most] if most.adjusts else [every[0]]


def noise_messages(
    experiment: Experiment, shape: tuple[int, int, int], classes: int, model: Model | None = None
) -> tuple[Network, list[bytes]]:
    """The network, and what a server sends for each round of `round_jobs` to a device that holds nothing.

    A model that is there already is sent as it is, and no code of a network's own is needed.
    """
    tame = experiment.model_copy(update=ON_NOISE)
    model = model or noise_model(tame, shape, classes)
    return model.network, [encode_broadcast(model, job) for job in round_jobs(tame)]
