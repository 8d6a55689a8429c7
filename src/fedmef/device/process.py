"""A device as a process of its own: messages come through a pipe, one after the other, and so do answers.

    request   number of the device, bytes of its samples' numbers, bytes of the message; then both
    answer    status, seconds, peak resident memory, bytes of the answer or of why there is none; then it

The samples' numbers are int64, and none means all: a simulation lets one process stand for several devices.
"""

import os
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import BinaryIO

import numpy as np

from fedmef.device.backend import import_backend
from fedmef.device.choice import native_threads
from fedmef.device.device import MOST_VALUES, MOST_WEIGHTS, Device
from fedmef.device.lost import Lost
from fedmef.device.measured import Measured, measured
from fedmef.device.own_data import OpenSamples
from fedmef.device.training import Samples
from fedmef.errors import FedmefError, MessageError, UserError
from fedmef.experiment.names import load_object
from fedmef.methods import Method, find_builtin_method
from fedmef.sparsity.network import Network
from fedmef.wire.container import MAXIMUM_BYTES
from fedmef.wire.store import Store

REQUEST = struct.Struct("<QQQ")
ANSWER = struct.Struct("<BdqQ")
DONE, FAILED = 0, 1
SAMPLE_BYTES = 8
MOST_SAMPLES_BYTES = 2**33
SKIPPED_BYTES = 2**16


def private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Where messages come from and answers go: what else prints or reads must not disturb them."""
    # No buffer for answers: where nobody reads them any more, it would complain when the process ends.
    messages, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout.flush()
    os.dup2(2, 1)
    return messages, answers


def serve(open_device: Callable[[], Device], messages: BinaryIO, answers: BinaryIO) -> int:
    """Answer until no more messages come. The first answer, to no message, says that it is ready, or why not.

    Gives the process's exit code. Raises `MessageError` for what is no request: nobody knows where the next
    one would begin; and `BrokenPipeError` when nobody waits for an answer any more.
    """
    try:
        device = open_device()
    except Exception as error:
        _write(answers, FAILED, Measured(), _why_not(error).to_text().encode())
        return error.exit_code if isinstance(error, FedmefError) else 1
    _write(answers, DONE, Measured(), b"")
    while header := messages.read(REQUEST.size):
        if len(header) < REQUEST.size:
            raise MessageError(f"a request of {len(header)} bytes: it ends too early")
        number, chosen, length = REQUEST.unpack(header)
        if chosen > MOST_SAMPLES_BYTES or chosen % SAMPLE_BYTES or length > MAXIMUM_BYTES:
            raise MessageError(
                f"a request with {chosen:,} bytes of samples' numbers and {length:,} of message"
            )
        unread = chosen + length
        try:
            indices = _read(messages, chosen)
            unread -= chosen
            message = [_read(messages, length)]
            unread = 0
            status, costs, answer = _train(_as(device, number, indices), message)
        except MemoryError as error:  # there is not even room for the message
            _skip(messages, unread)
            status, costs, answer = _failed(number, error)
        _write(answers, status, costs, answer)
        del answer  # before the next message takes memory
    return 0


def _why_not(error: Exception) -> Lost:
    unexpected = f"a device's process could not start: {type(error).__name__}: {error}"
    return Lost(str(error) if isinstance(error, FedmefError) else unexpected, traceback.format_exc())


def _read(messages: BinaryIO, length: int) -> bytes:
    content = messages.read(length)
    if len(content) < length:
        raise MessageError(f"a request ends {length - len(content):,} bytes too early")
    return content


def _skip(messages: BinaryIO, length: int) -> None:
    while length:
        length -= len(_read(messages, min(length, SKIPPED_BYTES)))


def _as(device: Device, number: int, indices: bytes) -> Device:
    if not indices:
        return replace(device, number=number)
    chosen, opened = np.frombuffer(indices, dtype=np.int64), device.samples

    def some(network: Network) -> Samples:
        samples = opened(network) if callable(opened) else opened
        if not 0 <= int(chosen.min()) <= int(chosen.max()) < len(samples.images):
            raise UserError(f"device {number}: there are only {len(samples.images)} samples")
        return replace(samples, indices=chosen)

    return replace(device, number=number, samples=some)


def _train(device: Device, message: list[bytes]) -> tuple[int, Measured, bytes]:
    """The message is taken out of its list: nobody else's, it is gone while the device trains."""
    try:
        with measured() as costs:
            answer = device.train(message.pop())
        return DONE, costs, answer
    except Exception as error:  # whatever is raised costs this update, and no other
        return _failed(device.number, error)


def _failed(device: int, error: Exception) -> tuple[int, Measured, bytes]:
    return FAILED, Measured(), Lost.by_raising(device, error).to_text().encode()


def _write(answers: BinaryIO, status: int, costs: Measured, content: bytes) -> None:
    for part in (ANSWER.pack(status, costs.seconds, costs.peak_memory, len(content)), content):
        unwritten = memoryview(part)
        while unwritten:
            unwritten = unwritten[answers.write(unwritten) :]


def native_device(
    samples: Samples | OpenSamples,
    *,
    number: int = 0,
    store: Store | None = None,
    methods: Sequence[str] = (),
    trusts_server: bool = False,
) -> Device:
    """A device without PyTorch.

    Args:
        samples: its data.
        number: which device it is.
        store: for what it keeps between rounds.
        methods: methods of your own that the server may ask for, as "package.module:Class".
        trusts_server: a network of any size will do.
    """
    backend, threads = import_backend("native"), native_threads()
    own = {name: _load_method(name) for name in methods}  # now, and not in a round whose time it would take

    def find(name: str) -> type[Method]:
        return own.get(name) or find_builtin_method(name)

    return Device(
        number,
        samples,
        lambda network: backend(network, threads=threads),
        store,
        find,
        most_weights=None if trusts_server else MOST_WEIGHTS,
        most_values=None if trusts_server else MOST_VALUES,
    )


def _load_method(name: str) -> type[Method]:
    method = load_object("method", name)
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise UserError(f"method '{name}' must be a subclass of fedmef.methods.Method")
    return method
