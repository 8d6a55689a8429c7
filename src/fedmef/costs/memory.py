"""A device's memory, measured: what a training step keeps, and its peak. Never an estimate."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedmef.costs import bytes_kept_for_backward, bytes_of_state
from fedmef.costs.noise_rounds import ON_NOISE, peak_of_rounds
from fedmef.experiment.settings import MACHINE_FIELDS, Experiment
from fedmef.federation.api import one_thread
from fedmef.federation.engines import prepared_model
from fedmef.methods import build_method
from fedmef.models import layout_for
from fedmef.runs.finished import FinishedRun


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of a training step at the run's batch size.

    Attributes:
        parameters: and masks and other buffers.
        gradients: of the parameters.
        activations: what the forward pass keeps for the backward pass.
        peak: of a step, the most bytes of tensors alive at once: the batch, a layer's working space and what
            an adjustment holds included. The same that `fedmef cost` shows.
    """

    parameters: int
    gradients: int
    activations: int
    peak: int

    @property
    def kept(self) -> int:
        """By a step: parameters, masks, gradients and activations, without working space."""
        return self.parameters + self.gradients + self.activations


class MemoryMeasurements:
    """Measures each configuration once, whatever its seeds; random images stand for the data."""

    def __init__(self) -> None:
        self._measured: dict[str, DeviceMemory | str] = {}

    def of(self, run: FinishedRun) -> DeviceMemory | str:
        """The bytes, or why they cannot be measured here."""
        configuration = run.experiment.model_dump_json(exclude={"seed", *MACHINE_FIELDS})
        configuration += str((run.summary.classes, run.summary.image_shape))
        if configuration not in self._measured:
            self._measured[configuration] = _measure(run)
        return self._measured[configuration]


def device_memory(experiment: Experiment, classes: int, image_shape: Sequence[int]) -> DeviceMemory:
    """Measure the network of an experiment as its method prepares and trains it, on a batch of noise."""
    experiment = experiment.model_copy(update=ON_NOISE)  # on the CPU, whose allocator does the counting
    model = prepared_model(experiment, build_method(experiment), classes, image_shape[0]).train()
    images = torch.randn(experiment.batch_size, *image_shape, generator=torch.Generator().manual_seed(0))
    images = images.contiguous(memory_format=layout_for(model))
    parameters = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    with one_thread(), torch.random.fork_rng(devices=[]):  # a thread more may take working space of its own
        return DeviceMemory(
            parameters,
            bytes_of_state(model, images) - parameters,
            bytes_kept_for_backward(model, images),
            peak_of_rounds(experiment, tuple(image_shape), classes),
        )


def _measure(run: FinishedRun) -> DeviceMemory | str:
    try:
        return device_memory(run.experiment, run.summary.classes, run.summary.image_shape)
    except Exception as error:  # a method or a network of the user's own may raise anything, or be gone
        return " ".join(str(error).split()) or type(error).__name__
