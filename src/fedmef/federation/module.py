"""A run's model as a PyTorch module."""

from typing import TYPE_CHECKING

from fedmef.device.backend import own_module
from fedmef.experiment.names import load_part
from fedmef.experiment.settings import Experiment
from fedmef.sparsity.model import Model

if TYPE_CHECKING:
    from torch import nn


def as_module(experiment: Experiment, model: Model) -> "nn.Module":
    """A copy, ready to predict; of a network that cannot be described as data, the user's own module."""
    if model.network.opaque is not None:
        module = own_module(experiment, model.network)
    else:
        module = load_part("fedmef.nn.module", "NetworkModule")(model.network)
    load_part("fedmef.nn.module", "load_state")(module, model.network, model.state)
    ready: nn.Module = module.eval()
    return ready
