"""FedAvg (McMahan et al. 2017): the dense network with BatchNorm, the 1x of every ratio."""

from fedmef.methods.base import Method


class FedAvg(Method):
    """Devices train the dense network, the server averages."""
