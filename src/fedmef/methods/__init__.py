"""The methods by name. One method is one file with both of its halves, the device's and the server's."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from fedmef.errors import UserError, naming_the_extra, unknown_name
from fedmef.experiment.names import load_object, own_name
from fedmef.methods.base import Adjustment, Method, Recipe
from fedmef.wire.job import Job
from fedmef.wire.update import Extras, Update

if TYPE_CHECKING:
    from fedmef.experiment.settings import Experiment

__all__ = [
    "METHODS",
    "Adjustment",
    "Extras",
    "Job",
    "Method",
    "Recipe",
    "Update",
    "find_builtin_method",
    "find_method",
    "known_method",
    "weight_sparsity",
]

# The module of each in this package, and its class; imported when it is asked for.
METHODS: Mapping[str, tuple[str, str]] = {
    "fedavg": ("fedavg", "FedAvg"),
    "fedavg_sap": ("fedavg", "FedAvgSAP"),
    "fl_pqsu": ("fl_pqsu", "FLPQSU"),
    "feddst": ("feddst", "FedDST"),
    "fedtiny": ("fedtiny", "FedTiny"),
    "fedmef": ("fedmef", "FedMef"),
    "fedmef_no_bae": ("ablations", "FedMefNoBaE"),
    "fedmef_no_sap": ("ablations", "FedMefNoSAP"),
    "fedmef_restart": ("ablations", "FedMefRestart"),
    "prunefl": ("prunefl", "PruneFL"),
    "zerofl": ("zerofl", "ZeroFL"),
}

# What others call a method, and is a setting here.
SETTINGS: Mapping[str, str] = {
    "fedadam": "server_optimizer = adam",
    "fedavgm": "server_optimizer = momentum",
    "fedopt": "server_optimizer = adam",
    "fedprox": "proximal, such as 0.1",
}


def find_builtin_method(name: str) -> type[Method]:
    """The method of that name, if it is one of ours."""
    if name not in METHODS:
        if name.lower() in SETTINGS:
            raise UserError(
                f"unknown method '{name}': it is a setting of any method, {SETTINGS[name.lower()]}"
            )
        raise unknown_name("method", name, METHODS, own_name(name))
    module, kind = METHODS[name]
    with naming_the_extra():
        method: type[Method] = getattr(import_module(f"{__name__}.{module}"), kind)
    return method


def find_method(name: str) -> type[Method]:
    """The method of that name; "package.module:Class" names one of the user's own."""
    if ":" not in name:
        return find_builtin_method(name)
    method = load_object("method", name)
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise UserError(f"method '{name}' must be a subclass of fedmef.methods.Method")
    _own_methods[name] = method
    return method


_own_methods: dict[str, type[Method]] = {}  # those that this process has found


def known_method(name: str) -> type[Method] | None:
    """The method of that name, without importing anybody's code: ours, or what was found here before."""
    return find_builtin_method(name) if name in METHODS else _own_methods.get(name)


def weight_sparsity(experiment: "Experiment") -> float:
    """0 for a dense method, whatever its configuration says; a method that is not known counts as sparse."""
    method = known_method(experiment.method)
    return experiment.sparsity if method is None or method.recipe.has_sparsity else 0.0
