"""Federated training of sparse convolutional networks on devices with little memory.

`sparsify` makes any convolutional PyTorch network really sparse; `run` trains one over many devices.
Each name is imported when it is first used, so that one part never loads the others.
"""

from importlib import import_module

TYPE_CHECKING = False  # what type checkers take for True; typing takes 10 ms, in which Ctrl-C is a traceback
if TYPE_CHECKING:
    from typing import Any

    from fedmef.errors import FedmefError, Interrupted, StopRun, UserError
    from fedmef.experiment.settings import Experiment
    from fedmef.federation.api import load, resume, run
    from fedmef.nn.densify import densify
    from fedmef.nn.layers import SparseConv2d
    from fedmef.nn.sparsify import sparsify
    from fedmef.runs.callbacks import Callback
    from fedmef.runs.directory import Run

    __version__: str

_PLACES = {
    "Callback": "fedmef.runs.callbacks",
    "Experiment": "fedmef.experiment.settings",
    "FedmefError": "fedmef.errors",
    "Interrupted": "fedmef.errors",
    "Run": "fedmef.runs.directory",
    "SparseConv2d": "fedmef.nn.layers",
    "StopRun": "fedmef.errors",
    "UserError": "fedmef.errors",
    "densify": "fedmef.nn.densify",
    "load": "fedmef.federation.api",
    "resume": "fedmef.federation.api",
    "run": "fedmef.federation.api",
    "sparsify": "fedmef.nn.sparsify",
}

__all__ = [
    "Callback",
    "Experiment",
    "FedmefError",
    "Interrupted",
    "Run",
    "SparseConv2d",
    "StopRun",
    "UserError",
    "densify",
    "load",
    "resume",
    "run",
    "sparsify",
]


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        return import_module("importlib.metadata").version("fedmef")
    if name in _PLACES:
        from fedmef.errors import naming_the_extra  # noqa: PLC0415  (nothing is loaded before it is used)

        with naming_the_extra():
            return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'fedmef' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
