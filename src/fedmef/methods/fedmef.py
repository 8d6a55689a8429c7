"""FedMef (Huang et al., CVPR 2024): memory-efficient federated dynamic pruning.

Sparse networks of normalised convolutions (NSConv) whose kept activations are pruned (SAP). In adjustment
rounds the devices extrude what low-magnitude weights know before the server prunes them (BaE), and send their
largest gradients at pruned positions, from which the server grows as many weights as it drops.
"""

from collections.abc import Sequence

from torch import nn

from fedmef.device import LocalTraining
from fedmef.experiment import CACHE_DTYPES
from fedmef.methods.base import Adjustment, Extras, Method, Plan, Update
from fedmef.methods.extrusion import BudgetAwareRate, MarkedWeights
from fedmef.methods.growth import adjustment_counts, drop_and_grow_from_averages
from fedmef.nn import sparsify


class FedMef(Method):
    """Algorithm 1, both halves."""

    def prepare(self, network: nn.Module) -> nn.Module:
        """Random sparse NSConv, with pruned caches."""
        experiment = self.experiment
        return sparsify(
            network,
            sparsity=experiment.sparsity,
            normalize=True,
            activation_sparsity=experiment.activation_sparsity,
            cache_dtype=CACHE_DTYPES[experiment.cache_dtype],
            seed=experiment.seed,
            distribution=experiment.distribution,
            gamma=experiment.gamma,
            scaling=experiment.scaling,
            affine=experiment.affine,
        )

    def plan(self, round_number: int) -> Plan:
        """Adjust every `ΔR` rounds, up to `R_stop`."""
        learning_rate = self.experiment.learning_rate_at(round_number)
        return Plan(round_number, learning_rate, self.schedule.rate(round_number))

    def train(self, local: LocalTraining, plan: Plan) -> Extras:
        """Ordinary training; in adjustment rounds extrusion instead, then the top-ξ gradients."""
        epochs = self.experiment.local_epochs
        if not plan.adjusts:
            local.fit(epochs)
            return Extras()

        counts = adjustment_counts(local.model, plan.adjustment_rate)
        marked = MarkedWeights(local.model, counts)
        rate = BudgetAwareRate(self.experiment.learning_rate, plan.learning_rate, local.steps(epochs))
        local.fit(
            epochs,
            penalty=lambda: self.experiment.extrusion * marked.squared_norm(),
            learning_rate=lambda step: rate.value(step, float(marked.squared_norm().detach().sqrt())),
        )
        return Extras(growth=local.growth_scores(counts))

    def adjust(self, model: nn.Module, updates: Sequence[Update], plan: Plan) -> Adjustment:
        """Drop `ξ_l` weights of every layer and grow as many."""
        return drop_and_grow_from_averages(model, updates, plan.adjustment_rate, self.experiment.grow_init)
