"""The backend: what executes a network on a device. NumPy arrays go in and come out.

PyTorch (`fedmef.nn.backend`) executes any network, on a CPU or a GPU. A backend is found by its name, so a
device never loads one that it does not use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol

from fedmef.errors import UserError
from fedmef.experiment.names import load_part
from fedmef.methods.extrusion import Pull
from fedmef.sparsity.arrays import Array, Floats
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.model import State
from fedmef.sparsity.network import Network

if TYPE_CHECKING:
    from fedmef.experiment.settings import Experiment

BackendName = Literal["auto", "torch", "native"]

# The package that it needs, its module and its class.
BACKENDS = {"torch": ("torch", "fedmef.nn.backend", "TorchBackend")}


@dataclass(frozen=True)
class Step:
    """What a training step gave.

    Attributes:
        loss: mean cross-entropy of the batch, before the step.
        pulled_norm: `||θ_low||₂` of the pulled weights, after the step.
    """

    loss: float
    pulled_norm: float = 0.0


class Backend(Protocol):
    """A network that can be trained and asked. `images` are uint8 [n, C, H, W], `labels` int64 [n]."""

    network: Network

    def load(self, state: Mapping[str, Array], seed: int = 0) -> None:
        """Take over a state; `seed` is for layers that draw random numbers, such as dropout."""
        ...

    def state(self) -> State:
        """The arrays as they are now. They may change with the next step: copy what must outlive it."""
        ...

    def step(self, images: Array, labels: Array, rate: float, pull: Pull | None = None) -> Step:
        """One step of plain SGD on the mean cross-entropy."""
        ...

    def growth(self, images: Array, labels: Array, counts: Mapping[str, int]) -> dict[str, GrowthScores]:
        """The `counts` largest gradients at pruned positions of each layer named; nothing is trained."""
        ...

    def predict(self, images: Array) -> Floats:
        """Logits [n, classes]."""
        ...


def open_backend(network: Network, name: BackendName = "auto", **options: Any) -> Backend:
    """A backend for a network. `options` are those of the backend, such as `accelerator` of torch."""
    opened: Backend = import_backend(name)(network, **options)
    return opened


def import_backend(name: BackendName = "auto") -> Any:
    """The class of this name, with whatever it needs."""
    chosen = "torch" if name == "auto" else name
    if chosen not in BACKENDS:
        raise UserError(f"backend = '{name}': this version of fedmef has no native kernels; use torch")
    package, module, backend = BACKENDS[chosen]
    if find_spec(package) is None:
        raise UserError(f"backend = '{name}': the package {package} is not installed")
    return load_part(module, backend)


def backend_for(experiment: "Experiment", network: Network) -> Backend:
    """What executes a network of an experiment in a simulation."""
    options: dict[str, Any] = {"accelerator": experiment.accelerator}
    if network.opaque is not None:
        options["module"] = own_module(experiment, network)
    return open_backend(network, experiment.backend, **options)


def own_module(experiment: "Experiment", network: Network) -> Any:
    """The network's own PyTorch code, which opaque operations need."""
    build = load_part("fedmef.models.initial", "prepared_module")
    return build(experiment, network.input.shape[0], network.classes)
