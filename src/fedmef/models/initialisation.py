"""How every network here starts: He et al., "Delving Deep into Rectifiers", https://arxiv.org/abs/1502.01852."""

from torch import nn


def initialise_convolutions(network: nn.Module) -> None:
    """Kaiming-normal weights by fan-out. Batch norms (one, zero) and classifier keep PyTorch's start."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
