"""The methods by name. One method is one file with both of its halves, the device's and the server's."""

from collections.abc import Mapping

from torch import nn

from fedmef.errors import UserError, unknown_name
from fedmef.experiment.names import load_object
from fedmef.experiment.settings import Experiment
from fedmef.methods.ablations import FedMefNoBaE, FedMefNoSAP, FedMefRestart
from fedmef.methods.base import Adjustment, Extras, Method, Plan, Update
from fedmef.methods.fedavg import FedAvg, FedAvgSAP
from fedmef.methods.feddst import FedDST
from fedmef.methods.fedmef import FedMef
from fedmef.methods.fedtiny import FedTiny
from fedmef.methods.fl_pqsu import FLPQSU
from fedmef.methods.prunefl import PruneFL
from fedmef.methods.zerofl import ZeroFL

__all__ = [
    "METHODS",
    "Adjustment",
    "Extras",
    "Method",
    "Plan",
    "Update",
    "build_method",
    "find_method",
    "prepare",
    "weight_sparsity",
]

METHODS: Mapping[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedavg_sap": FedAvgSAP,
    "fl_pqsu": FLPQSU,
    "feddst": FedDST,
    "fedtiny": FedTiny,
    "fedmef": FedMef,
    "fedmef_no_bae": FedMefNoBaE,
    "fedmef_no_sap": FedMefNoSAP,
    "fedmef_restart": FedMefRestart,
    "prunefl": PruneFL,
    "zerofl": ZeroFL,
}


def find_method(name: str) -> type[Method]:
    """The method of that name; "package.module:Class" names one of the user's own."""
    if ":" in name:
        method = load_object("method", name)
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise UserError(f"method '{name}' must be a subclass of fedmef.methods.Method")
        return method
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]


def build_method(experiment: Experiment) -> Method:
    """The experiment's method."""
    return find_method(experiment.method)(experiment)


def prepare(method: Method, network: nn.Module) -> nn.Module:
    """The network as the method trains it; a method of the user's own may return anything."""
    prepared: object = method.prepare(network)
    if not isinstance(prepared, nn.Module):
        raise UserError(
            f"method '{method.experiment.method}': prepare returned {type(prepared).__name__}: it must "
            "return the network, a torch.nn.Module"
        )
    return prepared


def weight_sparsity(experiment: Experiment) -> float:
    """0 for a dense method, whatever its configuration says; a method that is gone counts as sparse."""
    try:
        dense = find_method(experiment.method).dense
    except UserError:
        dense = False
    return 0.0 if dense else experiment.sparsity
