"""The backend: what executes a network on a device. NumPy arrays go in and come out.

PyTorch (`fedmef.nn.backend`) executes any network, on a CPU or a GPU. Our own kernels
(`fedmef.device.native_backend`) execute sparse networks on a CPU, faster and in less memory. A backend is
found by its name, so a device never loads one that it does not use.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from fedmef.device.choice import (
    KERNELS,
    METHOD_NEEDS_TORCH,
    OWN_LOSS,
    BackendName,
    choose_backend,
    choose_for,
    missing_kernels,
    native_threads,
)
from fedmef.errors import UserError
from fedmef.experiment.names import load_part
from fedmef.methods.extrusion import Pull
from fedmef.sparsity.arrays import Array, Floats
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.model import State
from fedmef.sparsity.network import Network
from fedmef.wire.job import CROSS_ENTROPY

if TYPE_CHECKING:
    from fedmef.experiment.settings import Experiment

# The package that it needs, its module and its class.
BACKENDS = {
    "torch": ("torch", "fedmef.nn.backend", "TorchBackend"),
    "native": (KERNELS, "fedmef.device.native_backend", "NativeBackend"),
}


@dataclass(frozen=True)
class Step:
    """What a training step gave.

    Attributes:
        loss: mean loss of the batch, before the step.
        pulled_norm: `||θ_low||₂` of the pulled weights, after the step.
    """

    loss: float
    pulled_norm: float = 0.0


@dataclass(frozen=True)
class Descent:
    """What a training step does besides plain SGD; momentum and anchor begin anew with every `load`.

    Attributes:
        momentum: of the gradients, as PyTorch's SGD has it.
        weight_decay: the gradient gets so much of the weight itself.
        proximal: FedProx's `μ`: the gradient gets `μ (θ − θ_0)`, `θ_0` being what was loaded.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0


PLAIN = Descent()


class Backend(Protocol):
    """A network that can be trained and asked. `images` are uint8 [n, C, H, W], `labels` int64 [n].

    Attributes:
        loss: the name of what it minimises.
    """

    network: Network
    loss: str

    def load(self, state: Mapping[str, Array], seed: int = 0) -> None:
        """Take over a state; `seed` is for layers that draw random numbers, such as dropout."""
        ...

    def state(self, names: Collection[str] | None = None) -> State:
        """The arrays as they are now, all or those named. They may change with the next step."""
        ...

    def step(
        self, images: Array, labels: Array, rate: float, pull: Pull | None = None, descent: Descent = PLAIN
    ) -> Step:
        """One step of SGD on the mean loss."""
        ...

    def growth(self, images: Array, labels: Array, counts: Mapping[str, int]) -> dict[str, GrowthScores]:
        """The `counts` largest gradients at pruned positions of each layer named; nothing is trained."""
        ...

    def predict(self, images: Array) -> Floats:
        """Logits [n, classes]."""
        ...

    def shrink(self) -> None:
        """Give back the memory that only steps need, if it can; the next one takes it again."""
        ...


def open_backend(
    network: Network,
    name: BackendName = "auto",
    *,
    accelerator: str = "cpu",
    module: Any = None,
    needs_torch: bool = False,
    loss: str = CROSS_ENTROPY,
) -> Backend:
    """A backend for a network.

    Args:
        network: what it executes.
        name: which one; auto chooses for this network.
        accelerator: where PyTorch's tensors live: cpu, cuda, cuda:1 and so on.
        module: the network's own PyTorch code, which opaque operations need.
        needs_torch: the method needs PyTorch.
        loss: what its steps minimise; any but cross-entropy needs PyTorch.
    """
    why = METHOD_NEEDS_TORCH if needs_torch else OWN_LOSS if loss != CROSS_ENTROPY else ""
    choice = choose_backend(network, name, accelerator=accelerator, needs_torch=why)
    opened: Backend
    if choice.name == "native":
        opened = import_backend("native")(network, threads=native_threads())
    else:
        opened = import_backend("torch")(network, accelerator=accelerator, module=module, loss=loss)
    return opened


def import_backend(name: BackendName) -> Any:
    """The class of this name, with whatever it needs; PyTorch's for `auto`, which may need any."""
    package, module, backend = BACKENDS["torch" if name == "auto" else name]
    if name == "native" and (missing := missing_kernels()):
        raise UserError(f"backend = 'native': {missing}")
    if find_spec(package) is None:
        raise UserError(f"backend = '{name}': the package {package} is not installed")
    return load_part(module, backend)


def backend_for(experiment: "Experiment", network: Network) -> Backend:
    """What executes a network of an experiment in a simulation."""
    chosen = choose_for(experiment, network).name
    module = own_module(experiment, network) if network.opaque is not None else None
    return open_backend(
        network, chosen, accelerator=experiment.accelerator, module=module, loss=experiment.loss
    )


def describe_backend(backend: Backend) -> str:
    """For people: `native (avx2, 1 thread)`, or `torch`."""
    instructions, threads = getattr(backend, "instructions", None), getattr(backend, "threads", 1)
    if instructions is None:
        return "torch"
    return f"native ({instructions}, {threads} {'thread' if threads == 1 else 'threads'})"


def own_module(experiment: "Experiment", network: Network) -> Any:
    """The network's own PyTorch code, which opaque operations need."""
    build = load_part("fedmef.models.initial", "prepared_module")
    return build(experiment, network.input.shape[0], network.classes, network.input.shape)
