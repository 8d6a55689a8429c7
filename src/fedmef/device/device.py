"""One device: it gets the global model and a job as bytes, trains on its own data, and answers with bytes."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedmef.device.backend import Backend
from fedmef.device.training import LocalTraining, Samples
from fedmef.errors import MessageError, UserError
from fedmef.experiment.randomness import derive_seed
from fedmef.methods import Method, find_builtin_method
from fedmef.sparsity.network import Network
from fedmef.wire.broadcast import decode_broadcast
from fedmef.wire.container import checksum_of
from fedmef.wire.job import Job
from fedmef.wire.store import Store
from fedmef.wire.update import Update, encode_update

MOST_WEIGHTS = 2**26  # six times a ResNet18, by default
MOST_VALUES = 2**31


@dataclass(frozen=True, eq=False)
class Device:
    """A device needs its data and its limits: what to train and how comes with every message.

    Attributes:
        samples: its data, or what gives them, once it knows the network.
        open_backend: gives a backend for a network; devices of a simulation may share one as scratch space.
        store: what it keeps between rounds; None: every message must bring everything.
        find_method: the device halves that it has; a server cannot make it import anything else.
        most_weights: the largest network that it takes, active and pruned weights together; None: any.
        most_values: of all results of a network, for a batch, together; None: any number.
        alone: the backend is its own, and so is its memory; devices of a simulation leave it as it is.
    """

    number: int
    samples: Samples | Callable[[Network], Samples]
    open_backend: Callable[[Network], Backend]
    store: Store | None = None
    find_method: Callable[[str], type[Method]] = find_builtin_method
    most_weights: int | None = MOST_WEIGHTS
    most_values: int | None = MOST_VALUES
    alone: bool = True

    def train(self, message: bytes) -> bytes:
        """One round."""
        answered = checksum_of(message)
        model, job = decode_broadcast(message, self.store, self.most_weights)
        del message  # where the caller has let go of it too, it is gone while the device trains
        method, network = self._method(job)(), model.network
        samples = self.samples(network) if callable(self.samples) else self.samples
        self._check(samples, network, job)
        backend = self.open_backend(network)
        if backend.loss != job.loss:
            raise MessageError(f"device {self.number} minimises {backend.loss}, and not loss = '{job.loss}'")
        backend.load(model.state, derive_seed(job.seed, "device", job.round, self.number))
        del model
        local = LocalTraining(self.number, backend, samples, job)
        extras, withheld = method.train(local, job), method.withheld(network)
        if self.alone:
            backend.shrink()
        loss, state = local.mean_loss(), backend.state()
        del local, backend  # if it is this device's own, it is gone before the answer takes memory
        weights = {name: state[name] for name in network.floats if name not in withheld}
        update = Update(self.number, len(samples), loss, weights, extras, job.round, answered)
        return encode_update(update, network, scheme=job.wire_scheme, wire_dtype=job.wire_dtype)

    def _method(self, job: Job) -> type[Method]:
        try:
            return self.find_method(job.method)
        except UserError as error:
            raise MessageError(str(error)) from None

    def _check(self, samples: Samples, network: Network, job: Job) -> None:
        shape = samples.images.shape[1:]
        if shape != network.input.shape:
            raise MessageError(
                f"device {self.number} has images of shape {list(shape)}, the network takes "
                f"{list(network.input.shape)}"
            )
        values = sum(map(math.prod, network.shapes.values())) * min(job.batch_size, len(samples))
        if self.most_values is not None and values > self.most_values:
            raise MessageError(
                f"a step computes {values:,} values: device {self.number} takes at most {self.most_values:,}"
            )
        labels = samples.labels[samples.indices]
        if not labels.size:
            raise MessageError(f"device {self.number} has no samples")
        if not 0 <= int(labels.min()) <= int(labels.max()) < network.classes:
            raise MessageError(f"device {self.number} has labels beyond the {network.classes} classes")
