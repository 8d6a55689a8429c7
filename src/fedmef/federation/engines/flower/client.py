"""The device's half of a Flower app: one device, whose data never leave it.

    app = client_app(load_data)

`load_data(partition_id)` gives the data of one device. The network and all else comes with the messages.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.supercore.utils import get_flwr_home

from fedmef.data import Dataset
from fedmef.device.backend import Backend, open_backend
from fedmef.device.choice import BackendName
from fedmef.device.device import MOST_WEIGHTS, Device
from fedmef.device.training import Samples
from fedmef.experiment.names import load_object
from fedmef.federation.engines.flower.translation import device_number, device_reply, train_reply
from fedmef.methods import Method, find_builtin_method
from fedmef.sparsity.network import Network
from fedmef.wire.job import read_job
from fedmef.wire.store import Store

if TYPE_CHECKING:
    from torch import nn

LoadData = Callable[..., Dataset]
LoadModule = Callable[[Network], "nn.Module"]

STORE = "store"  # a node's setting: the folder for what it keeps between rounds


@dataclass(frozen=True)
class _Settings:
    """What an app says of its device: see `client_app`."""

    load_data: LoadData
    methods: tuple[str, ...]
    load_module: LoadModule | None
    backend: BackendName
    accelerator: str
    most_weights: int | None


def client_app(
    load_data: LoadData,
    *,
    methods: tuple[str, ...] = (),
    load_module: LoadModule | None = None,
    backend: BackendName = "auto",
    accelerator: str = "cpu",
    most_weights: int | None = MOST_WEIGHTS,
) -> ClientApp:
    """A ClientApp that is one device.

    Args:
        load_data: a function of a module; called with the device's number.
        methods: methods of your own that the server may ask for, as "package.module:Class".
        load_module: gives the PyTorch module of a network that cannot be described as data; others need none.
        backend: what executes the network; auto chooses for each network, by what the device has.
        accelerator: where PyTorch's tensors live: cpu, cuda, cuda:1 and so on.
        most_weights: the largest network that the device takes, active and pruned weights together.
    """
    app = ClientApp()
    settings = _Settings(load_data, methods, load_module, backend, accelerator, most_weights)

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
    split = settings.load_data(number).train
    samples = Samples(split.images, split.labels, np.arange(len(split)))

    def train(number: int, content: bytes) -> bytes:
        device = Device(
            number,
            samples,
            partial(_backend, settings, read_job(content).method),
            store_of(context),
            partial(_find_method, settings.methods),
            settings.most_weights,
        )
        return device.train(content)

    return train_reply(message, number, train)


def _backend(settings: _Settings, method: str, network: Network) -> Backend:
    own = settings.load_module if network.opaque is not None else None
    return open_backend(
        network,
        settings.backend,
        accelerator=settings.accelerator,
        module=own(network) if own is not None else None,
        needs_torch=_find_method(settings.methods, method).needs_torch,
    )


def _find_method(own: tuple[str, ...], name: str) -> type[Method]:
    """A server may ask for the methods that the app names, and for ours."""
    if name not in own:
        return find_builtin_method(name)
    method = load_object("method", name)
    assert isinstance(method, type)
    assert issubclass(method, Method)
    return method


def store_of(context: Context) -> Store:
    """Where a device keeps masks and networks between rounds, whatever becomes of its SuperNode."""
    default = get_flwr_home() / "fedmef" / f"device-{device_number(context)}"
    return Store(Path(str(context.node_config.get(STORE, default))))
