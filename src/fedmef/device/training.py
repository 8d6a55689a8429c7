"""One device's local training in one round, as a method's device half sees it."""

import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from fedmef.device.backend import Backend, Descent, Step
from fedmef.device.batches import augment, batch_sizes, epoch
from fedmef.experiment.randomness import derive_seed, generator_for
from fedmef.methods.extrusion import Pull
from fedmef.sparsity.arrays import Array, Bytes, Integers
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.model import Model
from fedmef.wire.job import Job


@dataclass(frozen=True, eq=False)
class Samples:
    """A device's data: images and labels, and which of them are its own."""

    images: Bytes  # [N, C, H, W]
    labels: Integers  # [N]
    indices: Integers

    def __len__(self) -> int:
        return len(self.indices)

    def gather(self, chosen: Integers) -> tuple[Bytes, Integers]:
        """Copies of some samples. Pages of a mapped file do not stay resident for it."""
        gathered = self.images[chosen], self.labels[chosen]
        for array in (self.images, self.labels):
            _give_back_pages(array)
        return gathered


def _give_back_pages(array: Array) -> None:
    """The system's cache still has them. Not so changes to a private mapping (mode "c"): those stay."""
    mapping, mode = getattr(array, "_mmap", None), getattr(array, "mode", None)
    if mapping is not None and mode in ("r", "r+", "w+") and hasattr(mmap, "MADV_DONTNEED"):
        with suppress(OSError):  # it is only advice
            mapping.madvise(mmap.MADV_DONTNEED)


class LocalTraining:
    """A device's model, its data and SGD."""

    def __init__(self, device: int, backend: Backend, samples: Samples, job: Job) -> None:
        self.device = device
        self.backend = backend
        self.samples = samples
        self.job = job
        self.losses: list[float] = []
        self._descent = Descent(job.momentum, job.weight_decay, job.proximal)
        self._generator = generator_for(job.seed, "batches", job.round, device)
        self._order = _epochs(samples.indices, job, self._generator)
        self._epochs_trained = 0.0

    @property
    def model(self) -> Model:
        """The model as it is now; its arrays may change with the next step."""
        return Model(self.backend.network, self.backend.state())

    def layer(self, name: str) -> Model:
        """The model with the arrays of one sparse layer alone, which takes less memory."""
        return Model(self.backend.network, self.backend.state([f"{name}.mask", f"{name}.values"]))

    def steps(self, epochs: float) -> int:
        """How many steps this many epochs take; a part of a step counts as one."""
        return math.ceil(
            epochs * len(batch_sizes(len(self.samples), self.job.batch_size, self.job.left_over))
        )

    def fit(
        self,
        epochs: float,
        *,
        schedule: Callable[[int, Step | None], tuple[float, Pull | None]] | None = None,
    ) -> None:
        """Minimise the loss. A further call continues with the data where this one stops.

        Args:
            epochs: may end in the middle of one.
            schedule: asked before every step, given its number (from 0) and what the step before gave: the
                learning rate, and which weights to pull towards 0. By default the job's rate, and none.
        """
        taken = self.steps(self._epochs_trained)
        self._epochs_trained += epochs
        done: Step | None = None
        for number in range(self.steps(self._epochs_trained) - taken):
            rate, pull = (self.job.learning_rate, None) if schedule is None else schedule(number, done)
            done = self.backend.step(*self._batch(next(self._order)), rate, pull, self._descent)
            self.losses.append(done.loss)

    def growth_scores(self, counts: Mapping[str, int]) -> dict[str, GrowthScores]:
        """The largest gradients at pruned positions, of a full batch with the weights as they are now."""
        size = min(self.job.batch_size, len(self.samples))
        chosen = self._generator.choice(self.samples.indices, size, replace=False)
        return self.backend.growth(*self._batch(chosen), counts)

    def replace(self, model: Model) -> None:
        """Continue with another state of the same network."""
        self.backend.load(model.state, derive_seed(self.job.seed, "replaced", self.job.round, self.device))

    def mean_loss(self) -> float:
        """The mean training loss of all steps so far."""
        return float(np.mean(self.losses))

    def _batch(self, chosen: Integers) -> tuple[Bytes, Integers]:
        images, labels = self.samples.gather(chosen)
        return augment(images, self._generator) if self.job.augment else images, labels


def _epochs(indices: Integers, job: Job, generator: np.random.Generator) -> Iterator[Integers]:
    """No method of `LocalTraining`: that would hold itself, and its backend, until the collector comes."""
    while True:
        yield from epoch(indices, job.batch_size, job.left_over, generator)
