"""Whether a run's network is moderate enough to be built and trained for a report, before that is tried.

A configuration from elsewhere may ask for any width and any batch, and measuring takes what it asks for.
"""

import math

import torch

from fedmef.costs.units import human_bytes
from fedmef.errors import FedmefError
from fedmef.models import find_builder
from fedmef.runs.directory import Run

MOST_WEIGHTS = 2**27
MOST_ACTIVATIONS = 2**31  # bytes of a batch, roughly
MOST_CLASSES = 10**6
LAYERS, CHANNELS = 24, 64
REDUCTION = {"cifar": 1, "strided": 4, "imagenet": 16}  # of the image's area, by the stem


def too_large(run: Run) -> str:
    """Why the run's network is not measured here; "" when it can be."""
    experiment, summary = run.experiment, run.summary
    if ":" in experiment.model:
        return _own_too_large(run)
    channels, height, width = summary.image_shape
    pixels = experiment.batch_size * height * width // REDUCTION[experiment.stem]
    activations = 4 * pixels * max(LAYERS * (experiment.width or CHANNELS), channels)
    if activations > MOST_ACTIVATIONS or summary.classes > MOST_CLASSES:
        return _reason(f"a batch of it takes some {human_bytes(activations)}")
    try:
        with torch.device("meta"):  # shapes alone
            module = find_builder(experiment.model, experiment.width, experiment.stem)(
                classes=summary.classes, channels=channels
            )
    except Exception as error:  # shapes that no tensor can have, or a network that is not there
        return " ".join(str(error).split()) or type(error).__name__
    weights = sum(math.prod(parameter.shape) for parameter in module.parameters())
    return _reason(f"it has {weights:,} weights") if weights > MOST_WEIGHTS else ""


def _own_too_large(run: Run) -> str:
    """Of a network of the user's own, which is there as data."""
    try:
        network = run.network
    except FedmefError as error:
        return str(error)
    if tuple(run.summary.image_shape) != network.input.shape:
        return "its summary says another shape of images than its network has"
    activations = 4 * run.experiment.batch_size * sum(map(math.prod, network.shapes.values()))
    if activations > MOST_ACTIVATIONS or network.classes > MOST_CLASSES:
        return _reason(f"a batch of it takes some {human_bytes(activations)}")
    weights = sum(layer.size for layer in network.layers.values())
    return _reason(f"it has {weights:,} weights") if weights > MOST_WEIGHTS else ""


def _reason(why: str) -> str:
    return f"{why}: too much for a report; 'fedmef cost' measures anything"
