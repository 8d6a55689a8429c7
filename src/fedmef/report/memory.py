"""A device's memory, measured: parameters, masks, gradients and kept activations. Never an estimate."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedmef.costs import bytes_kept_for_backward, bytes_of_state
from fedmef.engines import prepared_model
from fedmef.experiment import MACHINE_FIELDS, Experiment
from fedmef.finished_run import FinishedRun
from fedmef.methods import build_method


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes alive at the end of a forward pass at the run's batch size.

    Attributes:
        state: parameters, masks and gradients.
        activations: what the forward pass keeps for the backward pass.
    """

    state: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.state + self.activations


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
    """Measure the network of an experiment as its method prepares it, on a batch of noise.

    The step is an ordinary one: what an adjustment round holds as well is not among the bytes.
    """
    experiment = experiment.model_copy(update={"device": "cpu"})  # the CPU's allocator does the counting
    model = prepared_model(experiment, build_method(experiment), classes, image_shape[0]).train()
    images = torch.randn(experiment.batch_size, *image_shape, generator=torch.Generator().manual_seed(0))
    return DeviceMemory(bytes_of_state(model, images), bytes_kept_for_backward(model, images))


def _measure(run: FinishedRun) -> DeviceMemory | str:
    try:
        return device_memory(run.experiment, run.summary.classes, run.summary.image_shape)
    except Exception as error:  # a method or a network of the user's own may raise anything, or be gone
        return " ".join(str(error).split()) or type(error).__name__
