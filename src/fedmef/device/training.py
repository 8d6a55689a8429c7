"""One device's local training in one round, as a method's device half sees it."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.data import Dataset, batches
from fedmef.experiment.randomness import torch_generator
from fedmef.experiment.settings import Experiment
from fedmef.models import wants_channels_last
from fedmef.nn import GrowthScores, growth_scores

if TYPE_CHECKING:
    from fedmef.methods.base import Plan


class LocalTraining:
    """A device's model, its data and plain SGD."""

    def __init__(
        self,
        device: int,
        model: nn.Module,
        dataset: Dataset,
        indices: Tensor,
        experiment: Experiment,
        plan: "Plan",
    ) -> None:
        self.model = model
        self.experiment = experiment
        self.dataset = dataset
        self.indices = indices  # which training samples are this device's
        self.generator = torch_generator(experiment.seed, "batches", plan.round, device)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=plan.learning_rate)
        self.last_batch: tuple[Tensor, Tensor] | None = None
        self.losses: list[Tensor] = []
        self._batches = self._epochs()
        self._epochs_trained = 0.0

    def steps(self, epochs: float) -> int:
        """How many steps so many epochs take, a part of a step counting as one."""
        return math.ceil(epochs * math.ceil(len(self.indices) / self.experiment.batch_size))

    def fit(
        self,
        epochs: float,
        *,
        penalty: Callable[[], Tensor] | None = None,
        learning_rate: Callable[[int], float] | None = None,
    ) -> None:
        """Minimise cross-entropy, plus `penalty()` if given; `learning_rate(step)` is asked at every step.

        A further call goes on with the data where this one stops, in the middle of an epoch if need be.
        """
        self.model.train()
        taken = self.steps(self._epochs_trained)
        self._epochs_trained += epochs
        for step in range(self.steps(self._epochs_trained) - taken):
            images, labels = self.last_batch = next(self._batches)
            if learning_rate is not None:
                self._set_learning_rate(learning_rate(step))
            loss = F.cross_entropy(self.model(images), labels)
            objective = loss if penalty is None else loss + penalty()
            objective.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad()  # now, so that no gradient is alive during the next forward pass
            self.losses.append(loss.detach())

    def growth_scores(self, counts: Mapping[str, int]) -> dict[str, GrowthScores]:
        """The largest gradients at pruned positions, of the last batch with the weights as they are now."""
        assert self.last_batch is not None, "fit() comes first"
        images, labels = self.last_batch
        self.optimizer.zero_grad()
        with growth_scores(self.model, counts) as scores:
            F.cross_entropy(self.model(images), labels).backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad()
        return scores

    def mean_loss(self) -> float:
        """The mean training loss of all steps so far."""
        return float(torch.stack(self.losses).mean())

    def _epochs(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from batches(
                self.dataset.train,
                self.indices,
                self.experiment.batch_size,
                *self.dataset.statistics(),
                generator=self.generator,
                augmented=self.experiment.augment,
                device=self.experiment.device,
                channels_last=wants_channels_last(self.model),
            )

    def _set_learning_rate(self, value: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = value
