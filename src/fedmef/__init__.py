"""Federated training of sparse convolutional networks on devices with little memory.

`sparsify` makes any convolutional PyTorch network really sparse; `run` trains one over many devices.
"""

from fedmef.errors import FedmefError, UserError
from fedmef.experiment import Experiment
from fedmef.federation import resume, run
from fedmef.nn import SparseConv2d, sparsify
from fedmef.run_directory import Run

__all__ = ["Experiment", "FedmefError", "Run", "SparseConv2d", "UserError", "resume", "run", "sparsify"]
