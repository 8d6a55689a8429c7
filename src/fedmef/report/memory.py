"""A device's memory, measured: parameters, masks, gradients and kept activations. Never an estimate."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.costs import bytes_kept_for_backward, bytes_of_state, peak_of_tensors
from fedmef.engines import prepared_model
from fedmef.experiment import MACHINE_FIELDS, Experiment
from fedmef.finished_run import FinishedRun
from fedmef.methods import build_method
from fedmef.models import layout_for


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of a training step at the run's batch size.

    Attributes:
        parameters: and masks and other buffers.
        gradients: of the parameters.
        activations: what the forward pass keeps for the backward pass.
        peak: the most that is alive at any time, a layer's transient tensors included.
    """

    parameters: int
    gradients: int
    activations: int
    peak: int

    @property
    def total(self) -> int:
        """What a step keeps: everything but transient tensors."""
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
    """Measure the network of an experiment as its method prepares it, on a batch of noise.

    The step is an ordinary one: what an adjustment round holds as well is not among the bytes.
    """
    experiment = experiment.model_copy(update={"device": "cpu"})  # the CPU's allocator does the counting
    model = prepared_model(experiment, build_method(experiment), classes, image_shape[0]).train()
    images = torch.randn(experiment.batch_size, *image_shape, generator=torch.Generator().manual_seed(0))
    images = images.contiguous(memory_format=layout_for(model))
    parameters = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    return DeviceMemory(
        parameters,
        bytes_of_state(model, images) - parameters,
        bytes_kept_for_backward(model, images),
        peak_of_tensors(lambda: copy.deepcopy(model), lambda twin: _step(twin, images)),
    )


def _measure(run: FinishedRun) -> DeviceMemory | str:
    try:
        return device_memory(run.experiment, run.summary.classes, run.summary.image_shape)
    except Exception as error:  # a method or a network of the user's own may raise anything, or be gone
        return " ".join(str(error).split()) or type(error).__name__


def _step(model: nn.Module, images: Tensor) -> None:
    with torch.random.fork_rng(devices=[]):
        labels = torch.zeros(len(images), dtype=torch.int64)
        F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
