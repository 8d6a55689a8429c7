"""FedMef (Huang et al. 2024, https://arxiv.org/abs/2403.14737): memory-efficient federated pruning.

Sparse networks of normalised convolutions (NSConv) whose kept activations are pruned (SAP). In adjustment
rounds the devices extrude what low-magnitude weights know before the server prunes them (BaE). The rest of an
adjustment is FedTiny's: the largest gradients at pruned positions go up, and the server drops and grows.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedmef.methods.base import Recipe
from fedmef.methods.extrusion import BudgetAwareRate, Extrusion, mark_smallest
from fedmef.methods.fedtiny import FedTiny
from fedmef.methods.growth import adjustment_counts
from fedmef.wire.job import Job
from fedmef.wire.update import Extras

if TYPE_CHECKING:
    from fedmef.device.training import LocalTraining


class FedMef(FedTiny):
    """Algorithm 1, both halves."""

    recipe = Recipe(norm="nsconv", prune_activations=True, learning_rate=1.0)

    def train(self, local: "LocalTraining", job: Job) -> Extras:
        """Ordinary training; in adjustment rounds extrusion instead, then the top-ξ gradients."""
        if not job.adjusts:
            return super().train(local, job)
        counts = adjustment_counts(local.model, job.adjustment_rate)
        local.fit(job.local_epochs, schedule=self._extrusion(local, job, counts).schedule)
        return Extras(growth=local.growth_scores(counts))

    def _extrusion(self, local: "LocalTraining", job: Job, counts: Mapping[str, int]) -> Extrusion:
        rate = BudgetAwareRate(job.initial_rate, job.learning_rate, local.steps(job.local_epochs))
        return Extrusion(mark_smallest(local.layer, counts), rate, self.strength(job))

    def strength(self, job: Job) -> float:
        """`λ`, the weight of the penalty on marked weights."""
        return job.extrusion
