"""FL-PQSU (Xu et al. 2021): the server prunes once, before training, and never again."""

from torch import nn

from fedmef.methods.base import Method
from fedmef.methods.sparse_network import sparse_network


class FLPQSU(Method):
    """A static sparse network: the weights of largest initial magnitude (L1) stay."""

    def prepare(self, network: nn.Module) -> nn.Module:
        """Prune the initial weights by magnitude, with BatchNorm and whole activations."""
        return sparse_network(network, self.experiment, initialization="magnitude")
