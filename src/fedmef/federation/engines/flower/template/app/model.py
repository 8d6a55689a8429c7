"""Your network: the function to change. Only the server has it; devices get the network as data."""

from torch import nn

from fedmef.models import small_cnn


def load_model(classes: int, channels: int) -> nn.Module:
    """YOUR NETWORK, an ordinary one: convolutions, BatchNorm, ReLU, pooling, sums. fedmef makes it sparse."""
    return small_cnn(classes=classes, channels=channels, width=16)
