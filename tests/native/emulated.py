"""The native backend on another processor, emulated, for tests that compare with PyTorch, which stays here.

A child process has the kernels (see `arm.py`). Requests and answers are JSON, and the bytes of the arrays in
it follow. This file is both ends: the child runs it as a program.
"""

import json
import os
import shlex
import struct
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from typing import IO, Any

import numpy as np

from fedmef.device.backend import Step
from fedmef.device.native_backend import NativeBackend
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.network import Network

EMULATOR = "FEDMEF_EMULATOR"  # an environment variable: what starts Python on the other processor
LENGTH = struct.Struct("<Q")

Arrays = dict[str, np.ndarray]


def write(stream: IO[bytes], content: Any) -> None:
    """JSON, and the bytes of every array in it."""
    arrays: list[np.ndarray] = []

    def described(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return {"dtype": value.dtype.str, "shape": value.shape}
        raise TypeError(type(value))

    text = json.dumps(content, default=described).encode()
    stream.write(LENGTH.pack(len(text)) + text)
    for array in arrays:
        stream.write(np.ascontiguousarray(array).tobytes())
    stream.flush()


def read(stream: IO[bytes]) -> Any:
    """What `write` wrote; None at the end."""
    if not (header := stream.read(LENGTH.size)):
        return None

    def filled(value: dict[str, Any]) -> Any:
        if value.keys() != {"dtype", "shape"}:
            return value
        places.append(array := np.empty(value["shape"], value["dtype"]))
        return array

    places: list[np.ndarray] = []
    content = json.loads(stream.read(LENGTH.unpack(header)[0]), object_hook=filled)
    for array in places:
        array[...] = np.frombuffer(stream.read(array.nbytes), array.dtype).reshape(array.shape)
    return content


@cache
def child() -> subprocess.Popen[bytes]:
    command = [*shlex.split(os.environ[EMULATOR]), "-m", "tests.native.emulated"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def ask(call: str, *arguments: Any) -> Any:
    """Have the child do something to its backend."""
    process = child()
    assert process.stdin is not None
    assert process.stdout is not None
    write(process.stdin, [call, *arguments])
    answer = read(process.stdout)
    assert answer is not None, "the emulated process died"
    if "error" in answer:
        raise AssertionError(answer["error"])
    return answer["result"]


class EmulatedBackend:
    """A `NativeBackend` whose kernels run in the child. Only the last one that was opened works."""

    def __init__(
        self, network: Network, threads: int = 1, instructions: str | None = None, *, inspect: bool = False
    ) -> None:
        self.network = network
        ask("open", network.to_json().decode(), threads, instructions, inspect)

    def load(self, state: Mapping[str, np.ndarray], seed: int = 0) -> None:
        ask("load", dict(state))

    def state(self, names: Collection[str] | None = None) -> Arrays:
        found: Arrays = ask("state", names)
        return found

    def step(self, images: np.ndarray, labels: np.ndarray, rate: float) -> Step:
        return Step(ask("step", images, labels, rate))

    def growth(
        self, images: np.ndarray, labels: np.ndarray, counts: Mapping[str, int]
    ) -> dict[str, GrowthScores]:
        found = ask("growth", images, labels, dict(counts))
        return {name: GrowthScores(*scores) for name, scores in found.items()}

    def predict(self, images: np.ndarray) -> np.ndarray:
        logits: np.ndarray = ask("predict", images)
        return logits

    def bits(self) -> Arrays:
        found: Arrays = ask("bits")
        return found

    def gradients(self) -> Arrays:
        found: Arrays = ask("gradients")
        return found


class Served:
    """The child's end."""

    backend: NativeBackend

    def available(self) -> list[str]:
        from fedmef.native._kernels import available

        return available()

    def open(self, network: str, threads: int, instructions: str | None, inspect: bool) -> None:
        opened = Network.from_json(network.encode())
        self.backend = NativeBackend(opened, threads, instructions, inspect=inspect)

    def step(self, images: np.ndarray, labels: np.ndarray, rate: float) -> float:
        return self.backend.step(images, labels, rate).loss

    def growth(self, images: np.ndarray, labels: np.ndarray, counts: dict[str, int]) -> dict[str, Any]:
        found = self.backend.growth(images, labels, counts)
        return {name: [scores.positions, scores.gradients] for name, scores in found.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    served = Served()
    while (request := read(requests)) is not None:
        call, *arguments = request
        try:
            write(answers, {"result": getattr(served, call)(*arguments)})
        except Exception as error:
            write(answers, {"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
