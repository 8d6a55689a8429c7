"""The device's half of a Flower app: one device, whose data never leave it. It needs no PyTorch.

    app = client_app()              each SuperNode says where its data are
    app = client_app(load_data)     or `load_data(partition_id)` gives the data of one device

The network and all else comes with the messages, so one app serves every model and every device of a fleet.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.supercore.utils import get_flwr_home

from fedmef.device.backend import Backend, open_backend
from fedmef.device.choice import BackendName
from fedmef.device.device import MOST_WEIGHTS, Device
from fedmef.device.own_data import OpenSamples, open_own_data
from fedmef.device.resident import give_back_freed_memory
from fedmef.device.training import Samples
from fedmef.errors import UserError
from fedmef.experiment.names import load_object
from fedmef.federation.engines.flower.translation import (
    content_of,
    device_number,
    device_reply,
    take_content,
    train_reply,
)
from fedmef.methods import Method, find_builtin_method
from fedmef.sparsity.network import Network
from fedmef.wire.job import CROSS_ENTROPY, read_job
from fedmef.wire.store import Store

if TYPE_CHECKING:
    from torch import nn

    from fedmef.data import Dataset

LoadData = Callable[..., "Dataset"]
LoadModule = Callable[[Network], "nn.Module"]

# A node's settings, next to its partition-id.
STORE = "store"  # the folder for what it keeps between rounds
DATA = "data"  # where its data are: see fedmef.device.own_data


@dataclass(frozen=True)
class _Settings:
    """What an app says of its device: see `client_app`."""

    load_data: LoadData | None
    methods: tuple[str, ...]
    load_module: LoadModule | None
    loss: str
    backend: BackendName
    accelerator: str
    most_weights: int | None


def client_app(
    load_data: LoadData | None = None,
    *,
    methods: tuple[str, ...] = (),
    load_module: LoadModule | None = None,
    loss: str = CROSS_ENTROPY,
    backend: BackendName = "auto",
    accelerator: str = "cpu",
    most_weights: int | None = MOST_WEIGHTS,
) -> ClientApp:
    """A ClientApp that is one device. Its data are where its SuperNode says: --node-config 'data="/folder"'.

    Args:
        load_data: a function of a module; called with the device's number where a SuperNode names no data.
        methods: methods of your own that the server may ask for, as "package.module:Class".
        load_module: gives the PyTorch module of a network that cannot be described as data; others need none.
        loss: what the device minimises, as "package.module:function"; a server that wants another is refused.
        backend: what executes the network; auto chooses for each network, by what the device has.
        accelerator: where PyTorch's tensors live: cpu, cuda, cuda:1 and so on.
        most_weights: the largest network that the device takes, active and pruned weights together.
    """
    app = ClientApp()
    settings = _Settings(load_data, methods, load_module, loss, backend, accelerator, most_weights)

    @app.query("device")
    def which_device(message: Message, context: Context) -> Message:
        return device_reply(message, context)

    @app.train("round")
    def train(message: Message, context: Context) -> Message:
        return _device_round(message, context, settings)

    return app


def _device_round(message: Message, context: Context, settings: _Settings) -> Message:
    """Not within `client_app`: Ray pickles what is, with whatever it names."""
    number = device_number(context)

    def train() -> bytes:
        give_back_freed_memory()
        device = _device(number, read_job(content_of(message)).method, context, settings)
        # Nobody but the device has the content now, so it is gone while the device trains.
        return device.train(take_content(message))

    return train_reply(message, number, train)


def _device(number: int, method: str, context: Context, settings: _Settings) -> Device:
    return Device(
        number,
        _samples(number, context, settings.load_data),
        partial(_backend, settings, method),
        store_of(context),
        partial(_find_method, settings.methods),
        settings.most_weights,
    )


def _samples(number: int, context: Context, load_data: LoadData | None) -> Samples | OpenSamples:
    if where := context.node_config.get(DATA):
        return _own(str(where), store_of(context).folder)
    if load_data is None:
        raise UserError(
            f"data: device {number} has none; start its SuperNode with "
            f"--node-config 'partition-id={number} data=\"/folder\"'"
        )
    return _loaded(load_data, number)


_own = lru_cache(maxsize=1)(open_own_data)  # a process is one device, or in a simulation one after the other


@lru_cache(maxsize=1)
def _loaded(load_data: LoadData, number: int) -> Samples:
    split = load_data(number).train
    return Samples(split.images, split.labels, np.arange(len(split)))


def _backend(settings: _Settings, method: str, network: Network) -> Backend:
    own = settings.load_module if network.opaque is not None else None
    return open_backend(
        network,
        settings.backend,
        accelerator=settings.accelerator,
        module=own(network) if own is not None else None,
        needs_torch=_find_method(settings.methods, method).needs_torch,
        loss=settings.loss,
    )


def _find_method(own: tuple[str, ...], name: str) -> type[Method]:
    """A server may ask for the methods that the app names, and for ours."""
    if name not in own:
        return find_builtin_method(name)
    method = load_object("method", name)
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise UserError(f"method '{name}' is no fedmef.methods.Method: correct methods=... of client_app")
    return method


def store_of(context: Context) -> Store:
    """Where a device keeps masks and networks between rounds, whatever becomes of its SuperNode."""
    default = get_flwr_home() / "fedmef" / f"device-{device_number(context)}"
    return Store(Path(str(context.node_config.get(STORE, default))))
