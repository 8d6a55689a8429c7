"""The device's half of a Flower app: one device, whose data never leave it.

    app = client_app(load_data)

`load_data(partition_id)` gives the data of one device. The network and all else comes with the messages.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.supercore.utils import get_flwr_home

from fedmef.data import Dataset
from fedmef.device.backend import Backend, open_backend
from fedmef.device.device import Device
from fedmef.device.training import Samples
from fedmef.experiment.names import load_object
from fedmef.federation.engines.flower.translation import device_number, device_reply, train_reply
from fedmef.methods import Method, find_builtin_method
from fedmef.sparsity.network import Network
from fedmef.wire.store import Store

if TYPE_CHECKING:
    from torch import nn

LoadData = Callable[..., Dataset]
LoadModule = Callable[[Network], "nn.Module"]

STORE = "store"  # a node's setting: the folder for what it keeps between rounds


def client_app(
    load_data: LoadData, *, methods: tuple[str, ...] = (), load_module: LoadModule | None = None
) -> ClientApp:
    """A ClientApp that is one device.

    Args:
        load_data: a function of a module; called with the device's number.
        methods: methods of your own that the server may ask for, as "package.module:Class".
        load_module: gives the PyTorch module of a network that cannot be described as data; others need none.
    """
    app = ClientApp()

    @app.query("device")
    def which_device(message: Message, context: Context) -> Message:
        return device_reply(message, context)

    @app.train("round")
    def train(message: Message, context: Context) -> Message:
        return _device_round(message, context, load_data, methods, load_module)

    return app


def _device_round(
    message: Message,
    context: Context,
    load_data: LoadData,
    methods: tuple[str, ...],
    load_module: LoadModule | None,
) -> Message:
    """Not within `client_app`: Ray pickles what is, with whatever it names."""
    number = device_number(context)
    split = load_data(number).train
    samples = Samples(split.images, split.labels, np.arange(len(split)))
    device = Device(
        number, samples, partial(_backend, load_module), store_of(context), partial(_find_method, methods)
    )
    return train_reply(message, number, lambda _, content: device.train(content))


def _backend(load_module: LoadModule | None, network: Network) -> Backend:
    options: dict[str, Any] = {}
    if network.opaque is not None and load_module is not None:
        options["module"] = load_module(network)
    return open_backend(network, **options)


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
