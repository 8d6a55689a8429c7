"""FedAvg (McMahan et al. 2017, https://arxiv.org/abs/1602.05629): dense, with BatchNorm; and it with SAP.

It is the 1x of every ratio.
"""

from fedmef.methods.base import Method, Recipe


class FedAvg(Method):
    """Devices train the dense network, the server averages."""


class FedAvgSAP(FedAvg):
    """FedAvg with scaled activation pruning: dense weights, NSConv, pruned caches."""

    recipe = Recipe(weights="dense", norm="nsconv", prune_activations=True, learning_rate=1.0)
