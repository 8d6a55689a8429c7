"""Which backend executes a network: native where it can and where that pays, torch otherwise."""

import os
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from fedmef.errors import UserError
from fedmef.experiment.names import load_part
from fedmef.methods import known_method, weight_sparsity
from fedmef.sparsity.network import Network
from fedmef.wire.job import CROSS_ENTROPY

if TYPE_CHECKING:
    from fedmef.experiment.settings import Experiment

BackendName = Literal["auto", "torch", "native"]

KERNELS = "fedmef.native._kernels"
THREADS = "FEDMEF_THREADS"  # an environment variable: threads of the native backend
MOST_THREADS = 1024
METHOD_NEEDS_TORCH = "the method needs torch"
NOT_BOTH = "momentum together with proximal needs torch"
OWN_LOSS = "a loss of your own needs torch"
HOW_TO_BUILD = "install a C++20 compiler, such as g++ 12, and fedmef again (in a clone: make native)"


@dataclass(frozen=True)
class Choice:
    """A backend, and why `auto` did not take the other one; "" when it was asked for."""

    name: Literal["torch", "native"]
    reason: str = ""


def choose_for(experiment: "Experiment", network: Network) -> Choice:
    """What executes a network of an experiment, on every device of a simulation and at the evaluation."""
    return choose_backend(
        network,
        experiment.backend,
        accelerator=experiment.accelerator,
        needs_torch=_why_torch(experiment),
        dense=weight_sparsity(experiment) == 0,
    )


def why_only_torch(experiment: "Experiment", network: Network) -> str:
    """Why an experiment's network or method cannot have the native kernels that are here; "" if it can.

    Nothing is said of what was asked for: an accelerator, or the torch backend.
    """
    if experiment.backend == "torch" or experiment.accelerator != "cpu" or missing_kernels():
        return ""
    return _obstacle(network, "cpu", _why_torch(experiment))


def choose_backend(
    network: Network,
    name: BackendName = "auto",
    *,
    accelerator: str = "cpu",
    needs_torch: str = "",
    dense: bool | None = None,
) -> Choice:
    """What executes a network; raises `UserError` when it cannot be what was asked for.

    Args:
        network: what is executed.
        name: what was asked for.
        accelerator: where tensors are to live.
        needs_torch: why nothing else than PyTorch can train it, or "".
        dense: no weight is pruned; by default, when no layer of the network could have pruned ones.
    """
    if name == "torch":
        return Choice("torch")
    obstacle = _obstacle(network, accelerator, needs_torch)
    if name == "native":
        if obstacle:
            raise UserError(f"backend = 'native': {obstacle}; use torch or auto")
        return Choice("native")
    if find_spec("torch") is None:
        if obstacle:
            raise UserError(
                f"backend = 'auto': PyTorch is not installed, and the other backend: {obstacle}; "
                "install torch"
            )
        return Choice("native", "PyTorch is not installed")
    if not obstacle and (not network.sparse_layers if dense is None else dense):
        obstacle = "its weights are dense, where PyTorch is faster"
    return Choice("torch", obstacle) if obstacle else Choice("native")


def missing_kernels() -> str:
    """Why the compiled extension cannot be used here; "" when it can."""
    try:
        import_module(KERNELS)
    except ImportError as error:
        if find_spec(KERNELS) is None:
            return f"the native kernels are not built: {HOW_TO_BUILD}"
        return f"the native kernels cannot be loaded ({error}): {HOW_TO_BUILD}"
    return ""


def native_threads() -> int:
    """Threads of a native backend: one, or as many as the environment says. They change no result."""
    text = os.environ.get(THREADS, "1")
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_THREADS):
        raise UserError(f"{THREADS} = '{text}': must be a number from 1 to {MOST_THREADS}")
    return int(text)


def _why_torch(experiment: "Experiment") -> str:
    """A method that is not known trains nothing here: its model can be evaluated on any backend."""
    known = known_method(experiment.method)
    if known is not None and known.needs_torch:
        return METHOD_NEEDS_TORCH
    if experiment.loss != CROSS_ENTROPY:
        return OWN_LOSS
    return NOT_BOTH if experiment.proximal and experiment.momentum else ""


def _obstacle(network: Network, accelerator: str, needs_torch: str) -> str:
    """Why the native backend cannot execute a network; "" when it can."""
    if accelerator != "cpu":
        return f"it has no accelerator = '{accelerator}'"
    if needs_torch:
        return needs_torch
    if missing := missing_kernels():
        return missing
    unsupported: str | None = load_part("fedmef.device.native_backend", "unsupported")(network)
    return unsupported or ""
