"""FedMef with one of its parts taken away."""

from torch import nn

from fedmef.device.training import LocalTraining
from fedmef.methods.base import Extras, Plan
from fedmef.methods.fedmef import FedMef
from fedmef.methods.fedtiny import FedTiny
from fedmef.methods.sparse_network import sparse_network


class FedMefNoBaE(FedMef):
    """Without budget-aware extrusion: adjustment rounds train as FedTiny's do."""

    def train(self, local: LocalTraining, plan: Plan) -> Extras:
        """FedTiny's training."""
        return FedTiny.train(self, local, plan)


class FedMefNoSAP(FedMef):
    """Without scaled activation pruning, as DropIT has it: pruned caches, but BatchNorm, not NSConv."""

    normalized = False

    def prepare(self, network: nn.Module) -> nn.Module:
        """Random sparse, with BatchNorm, which keeps its own dense input, and pruned caches."""
        return sparse_network(network, self.experiment, prune_activations=True)


class FedMefRestart(FedMef):
    """Extrusion's learning rate without its penalty (`λ = 0`): what restarting the rate alone does."""

    @property
    def extrusion(self) -> float:
        """No penalty."""
        return 0.0
