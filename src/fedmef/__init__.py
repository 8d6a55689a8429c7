"""Federated training of sparse convolutional networks on devices with little memory.

`sparsify` makes any convolutional PyTorch network really sparse; `run` trains one over many devices.
"""

from importlib.metadata import version

from fedmef.errors import FedmefError, Interrupted, UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.api import load, resume, run
from fedmef.nn import SparseConv2d, sparsify
from fedmef.runs.directory import Run

__all__ = [
    "Experiment",
    "FedmefError",
    "Interrupted",
    "Run",
    "SparseConv2d",
    "UserError",
    "load",
    "resume",
    "run",
    "sparsify",
]
__version__ = version("fedmef")
