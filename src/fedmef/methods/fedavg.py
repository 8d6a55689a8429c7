"""FedAvg (McMahan et al. 2017): the dense network with BatchNorm, the 1x of every ratio; and it with SAP."""

from torch import nn

from fedmef.methods.base import Method
from fedmef.methods.sparse_network import sparse_network


class FedAvg(Method):
    """Devices train the dense network, the server averages."""

    dense = True


class FedAvgSAP(FedAvg):
    """FedAvg with scaled activation pruning: dense weights, NSConv, pruned caches."""

    normalized = True
    prunes_activations = True

    def prepare(self, network: nn.Module) -> nn.Module:
        """All weights stay."""
        return sparse_network(network, self.experiment, sparsity=0.0, normalize=True, prune_activations=True)
