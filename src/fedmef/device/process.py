"""A device as a process of its own: messages come through a pipe, one after the other, and so do answers.

    request   number of the device, bytes of its samples' numbers, bytes of the message; then both
    answer    status, seconds, peak resident memory, bytes of the answer or of why there is none; then it

The samples' numbers are int64, and none means all: a simulation lets one process stand for several devices.
"""

import os
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedmef.device.backend import import_backend
from fedmef.device.choice import native_threads
from fedmef.device.device import MOST_VALUES, MOST_WEIGHTS, Device
from fedmef.device.lost import Lost
from fedmef.device.measured import Measured, measured
from fedmef.device.own_data import OpenSamples
from fedmef.device.training import Samples
from fedmef.errors import UserError
from fedmef.experiment.names import load_object
from fedmef.methods import Method, find_builtin_method
from fedmef.sparsity.arrays import Integers
from fedmef.sparsity.network import Network
from fedmef.wire.container import MAXIMUM_BYTES
from fedmef.wire.store import Store

REQUEST = struct.Struct("<QQQ")
ANSWER = struct.Struct("<BdqQ")
DONE, FAILED = 0, 1
MOST_SAMPLES_BYTES = 2**33


def private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Where messages come from and answers go: what else prints or reads must not disturb them."""
    messages, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout.flush()
    os.dup2(2, 1)
    return messages, answers


def serve(device: Device, messages: BinaryIO, answers: BinaryIO) -> None:
    """Answer until no more messages come. The first answer, to no message, says that it is ready."""
    _write(answers, DONE, Measured(), b"")
    while header := messages.read(REQUEST.size):
        number, indices, length = REQUEST.unpack(header)
        if indices > MOST_SAMPLES_BYTES or length > MAXIMUM_BYTES:
            raise UserError(f"a request of {indices + length:,} bytes")
        chosen = np.frombuffer(messages.read(indices), dtype=np.int64) if indices else None
        # The message is nobody's but the device's: it is gone while the device trains.
        _answer(_as(device, number, chosen), messages.read(length), answers)


def _as(device: Device, number: int, chosen: Integers | None) -> Device:
    if chosen is None:
        return replace(device, number=number)
    opened = device.samples

    def some(network: Network) -> Samples:
        samples = opened(network) if callable(opened) else opened
        if chosen.size and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(samples.images):
            raise UserError(f"device {number}: there are only {len(samples.images)} samples")
        return replace(samples, indices=chosen)

    return replace(device, number=number, samples=some)


def _answer(device: Device, message: bytes, answers: BinaryIO) -> None:
    costs = Measured()
    try:
        with measured() as costs:
            answer = device.train(message)
        status = DONE
    except Exception as error:  # whatever is raised costs this update, and no other
        status, answer = FAILED, Lost.by_raising(device.number, error).to_text().encode()
    _write(answers, status, costs, answer)


def _write(answers: BinaryIO, status: int, costs: Measured, content: bytes) -> None:
    answers.write(ANSWER.pack(status, costs.seconds, costs.peak_memory, len(content)))
    answers.write(content)
    answers.flush()


def native_device(
    samples: Samples | OpenSamples,
    *,
    number: int = 0,
    store: Path | None = None,
    methods: Sequence[str] = (),
    trusts_server: bool = False,
) -> Device:
    """A device without PyTorch.

    Args:
        samples: its data.
        number: which device it is.
        store: a folder for what it keeps between rounds.
        methods: methods of your own that the server may ask for, as "package.module:Class".
        trusts_server: a network of any size will do.
    """
    backend, threads = import_backend("native"), native_threads()
    return Device(
        number,
        samples,
        lambda network: backend(network, threads=threads),
        Store(store) if store is not None else None,
        _finder(tuple(methods)),
        most_weights=None if trusts_server else MOST_WEIGHTS,
        most_values=None if trusts_server else MOST_VALUES,
    )


def _finder(own: tuple[str, ...]) -> Callable[[str], type[Method]]:
    def find(name: str) -> type[Method]:
        if name not in own:
            return find_builtin_method(name)
        method = load_object("method", name)
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise UserError(f"method '{name}' is no fedmef.methods.Method")
        return method

    return find
