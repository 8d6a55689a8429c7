"""FedTiny (Huang et al. 2022): devices send their largest gradients, the server drops and grows.

Its batch-norm selection module is left out, as in FedMef's comparison.
"""

from collections.abc import Sequence

from torch import nn

from fedmef.device.training import LocalTraining
from fedmef.methods.base import Adjustment, Extras, Method, Plan, Update
from fedmef.methods.growth import adjustment_counts, check_growth, drop_and_grow_from_averages
from fedmef.methods.sparse_network import sparse_network


class FedTiny(Method):
    """A random sparse network with BatchNorm whose masks the server adjusts."""

    def prepare(self, network: nn.Module) -> nn.Module:
        """Random sparse, with BatchNorm and whole activations."""
        return sparse_network(network, self.experiment)

    def plan(self, round_number: int) -> Plan:
        """Adjust every `ΔR` rounds, up to `R_stop`."""
        learning_rate = self.experiment.learning_rate_at(round_number)
        return Plan(round_number, learning_rate, self.schedule.rate(round_number))

    def train(self, local: LocalTraining, plan: Plan) -> Extras:
        """Ordinary training; in adjustment rounds the top-ξ gradients at pruned positions go up too."""
        local.fit(self.experiment.local_epochs)
        if not plan.adjusts:
            return Extras()
        return Extras(growth=local.growth_scores(adjustment_counts(local.model, plan.adjustment_rate)))

    def check(self, model: nn.Module, update: Update, plan: Plan) -> None:
        """In adjustment rounds every update has its gradients."""
        check_growth(model, update, plan.adjustment_rate)

    def adjust(self, model: nn.Module, updates: Sequence[Update], plan: Plan) -> Adjustment:
        """Drop `ξ_l` weights of every layer and grow as many."""
        return drop_and_grow_from_averages(
            model,
            updates,
            plan.adjustment_rate,
            self.experiment.grow_init,
            votes=self.experiment.aggregation != "mean",
        )
