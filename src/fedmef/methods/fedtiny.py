"""FedTiny (Huang et al. 2022, https://arxiv.org/abs/2212.01977): devices send their largest gradients.

Of pruned positions, in adjustment rounds; the server drops and grows.
Its batch-norm selection module is left out, as in FedMef's comparison.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedmef.methods.base import Adjustment, Method, Recipe, Rules, adjustment_schedule
from fedmef.methods.growth import (
    adjustment_counts,
    check_growth,
    drop_and_grow_from_averages,
    growth_bytes,
)
from fedmef.sparsity.model import Model
from fedmef.wire.job import Job
from fedmef.wire.update import Extras, Update

if TYPE_CHECKING:
    from fedmef.device.training import LocalTraining
    from fedmef.experiment.settings import Experiment


class FedTiny(Method):
    """A random sparse network with BatchNorm whose masks the server adjusts."""

    recipe = Recipe()

    def job(self, experiment: "Experiment", round_number: int) -> Job:
        """Adjust every `ΔR` rounds, up to `R_stop`."""
        rate = adjustment_schedule(experiment).rate(round_number)
        return replace(super().job(experiment, round_number), adjustment_rate=rate)

    def train(self, local: "LocalTraining", job: Job) -> Extras:
        """Ordinary training; in adjustment rounds the top-ξ gradients at pruned positions go up too."""
        local.fit(job.local_epochs)
        if not job.adjusts:
            return Extras()
        return Extras(growth=local.growth_scores(adjustment_counts(local.model, job.adjustment_rate)))

    def check(self, model: Model, update: Update, job: Job) -> None:
        """In adjustment rounds every update has its gradients."""
        check_growth(model, update, job.adjustment_rate)

    def extra_bytes(self, model: Model, job: Job) -> int:
        """The gradients, in adjustment rounds."""
        return growth_bytes(model, job.adjustment_rate)

    def adjust(self, model: Model, updates: Sequence[Update], job: Job, rules: Rules) -> Adjustment:
        """Drop `ξ_l` weights of every layer and grow as many."""
        return drop_and_grow_from_averages(model, updates, job, rules)
