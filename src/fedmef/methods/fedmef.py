"""FedMef (Huang et al., CVPR 2024): memory-efficient federated dynamic pruning.

Sparse networks of normalised convolutions (NSConv) whose kept activations are pruned (SAP). In adjustment
rounds the devices extrude what low-magnitude weights know before the server prunes them (BaE). The rest of an
adjustment is FedTiny's: the largest gradients at pruned positions go up, and the server drops and grows.
"""

from torch import nn

from fedmef.device.training import LocalTraining
from fedmef.methods.base import Extras, Plan
from fedmef.methods.extrusion import BudgetAwareRate, Extrusion, MarkedWeights
from fedmef.methods.fedtiny import FedTiny
from fedmef.methods.growth import adjustment_counts
from fedmef.methods.sparse_network import sparse_network


class FedMef(FedTiny):
    """Algorithm 1, both halves."""

    normalized = True
    prunes_activations = True

    def prepare(self, network: nn.Module) -> nn.Module:
        """Random sparse NSConv, with pruned caches."""
        return sparse_network(network, self.experiment, normalize=True, prune_activations=True)

    def train(self, local: LocalTraining, plan: Plan) -> Extras:
        """Ordinary training; in adjustment rounds extrusion instead, then the top-ξ gradients."""
        epochs = self.experiment.local_epochs
        if not plan.adjusts:
            local.fit(epochs)
            return Extras()

        counts = adjustment_counts(local.model, plan.adjustment_rate)
        rate = BudgetAwareRate(self.experiment.learning_rate, plan.learning_rate, local.steps(epochs))
        extrusion = Extrusion(MarkedWeights(local.model, counts), rate, self.extrusion)
        local.fit(epochs, penalty=extrusion.penalty, learning_rate=extrusion.learning_rate)
        return Extras(growth=local.growth_scores(counts))

    @property
    def extrusion(self) -> float:
        """`λ`, the weight of the penalty on marked weights."""
        return self.experiment.extrusion
