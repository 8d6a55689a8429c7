"""A device's memory, measured: parameters, masks, gradients and kept activations. Never an estimate."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedmef.costs import bytes_kept_for_backward, bytes_of_state
from fedmef.engines import prepared_model
from fedmef.experiment import MACHINE_FIELDS
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


def _measure(run: FinishedRun) -> DeviceMemory | str:
    experiment = run.experiment.model_copy(update={"device": "cpu"})  # the CPU's allocator does the counting
    shape: Sequence[int] = run.summary.image_shape
    try:
        model = prepared_model(experiment, build_method(experiment), run.summary.classes, shape[0]).train()
        images = torch.randn(experiment.batch_size, *shape, generator=torch.Generator().manual_seed(0))
        return DeviceMemory(bytes_of_state(model, images), bytes_kept_for_backward(model, images))
    except Exception as error:  # a method or a network of the user's own may raise anything, or be gone
        return " ".join(str(error).split()) or type(error).__name__
