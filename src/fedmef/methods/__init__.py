"""The methods by name. One method is one file with both of its halves, the device's and the server's."""

from collections.abc import Mapping

from fedmef.errors import UserError, unknown_name
from fedmef.experiment import Experiment
from fedmef.methods.ablations import FedMefNoBaE, FedMefNoSAP, FedMefRestart
from fedmef.methods.base import Adjustment, Extras, Method, Plan, Update
from fedmef.methods.fedavg import FedAvg, FedAvgSAP
from fedmef.methods.feddst import FedDST
from fedmef.methods.fedmef import FedMef
from fedmef.methods.fedtiny import FedTiny
from fedmef.methods.fl_pqsu import FLPQSU
from fedmef.methods.prunefl import PruneFL
from fedmef.methods.zerofl import ZeroFL
from fedmef.plugins import load_object

__all__ = ["METHODS", "Adjustment", "Extras", "Method", "Plan", "Update", "build_method"]

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


def build_method(experiment: Experiment) -> Method:
    """The experiment's method; "package.module:Class" names one of the user's own."""
    name = experiment.method
    if ":" in name:
        method = load_object("method", name)
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise UserError(f"method '{name}' must be a subclass of fedmef.methods.Method")
        return method(experiment)
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name](experiment)
