"""The extension's memory: indices of 16 and 32 bits, what it gives back, too little of it, two threads."""

import pytest

pytest.importorskip("fedmef.native._kernels")

import os
import subprocess
import sys
import threading

import numpy as np

from fedmef.device.native_backend import NativeBackend
from fedmef.methods.extrusion import Pull
from fedmef.native._kernels import Program, Runtime, available
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import AdaptiveAveragePool, Cache, Convolution, Flatten, Linear, Operation
from tests.native.reference import assert_step_agrees
from tests.sparsity.networks import random_model

SIDE, CHANNELS = 96, 22  # a block of planes has more than 65,536 pixels, whatever the lanes


def large_planes() -> Network:
    steps: tuple[Operation, ...] = (
        Convolution(name="stem", inputs=(INPUT,), module="stem", shape=(CHANNELS, 1, 1, 1)),
        Convolution(
            name="conv", inputs=("stem",), module="conv", shape=(CHANNELS, CHANNELS, 3, 3), padding=(1, 1),
            sparse=True, cache=Cache(0.5),
        ),
        AdaptiveAveragePool(name="pool", inputs=("conv",)),
        Flatten(name="flat", inputs=("pool",)),
    )  # fmt: skip
    return Network(Input((1, SIDE, SIDE), (0.5,), (0.25,)), steps)


def wide_linear() -> Network:
    """More than 65,536 weights between the channels and the filters that are in a buffer at a time."""
    steps: tuple[Operation, ...] = (
        Flatten(name="pixels", inputs=(INPUT,)),
        Linear(name="first", inputs=("pixels",), module="first", shape=(300, 4)),
        Linear(name="wide", inputs=("first",), module="wide", shape=(300, 300), sparse=True),
        Linear(name="last", inputs=("wide",), module="last", shape=(3, 300)),
    )
    return Network(Input((1, 2, 2), (0.5,), (0.25,)), steps)


def batch(network: Network, count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, *network.input.shape), dtype=np.uint8)
    return images, generator.integers(0, network.classes, count)


@pytest.mark.parametrize("instructions", available())
def test_offsets_in_large_planes_have_32_bits_and_only_as_long_as_they_are_needed(instructions: str) -> None:
    model = random_model(large_planes(), 0.5)
    backend = NativeBackend(model.network, instructions=instructions, inspect=True)
    images, labels = batch(model.network, 16)
    indices = []
    for count in (16, 1, 16):
        assert_step_agrees(backend, model.state, images[:count], labels[:count])
        indices.append(backend.memory()["indices"])
        np.testing.assert_array_equal(backend.state()["conv.mask"], model.state["conv.mask"])
    active = model.state["conv.values"].size
    assert indices[1] - indices[0] >= 2 * 2 * active  # forward and backward, two bytes more
    assert indices[2] == indices[0]


@pytest.mark.parametrize("instructions", available())
@pytest.mark.parametrize("count", [1, 16])
def test_many_weights_between_two_blocks_are_transposed_with_32_bits(count: int, instructions: str) -> None:
    model = random_model(wide_linear(), 0.1)
    active = model.state["wide.values"].size
    assert active > 2**16
    backend = NativeBackend(model.network, instructions=instructions, inspect=True)
    assert_step_agrees(backend, model.state, *batch(model.network, count))
    assert backend.memory()["indices"] >= (2 + 2 + 4) * active
    np.testing.assert_array_equal(backend.state()["wide.mask"], model.state["wide.mask"])


def test_shrinking_gives_back_everything_but_weights_and_indices() -> None:
    model = random_model(large_planes(), 0.5)
    backend = NativeBackend(model.network)
    images, labels = batch(model.network, 16)
    backend.load(model.state)
    first = backend.step(images, labels, 0.1).loss
    used = backend.memory()
    backend.shrink()
    assert backend.memory() == used | {"arena": 0, "scratch": 0}
    backend.load(model.state)
    assert backend.step(images, labels, 0.1).loss == first
    assert backend.memory() == used


def test_marks_are_given_back_when_nothing_is_pulled_any_more() -> None:
    model = random_model(large_planes(), 0.5)
    backend = NativeBackend(model.network)
    images, labels = batch(model.network, 16)
    backend.load(model.state)
    backend.step(images, labels, 0.1)
    plain = backend.memory()["indices"]
    backend.step(images, labels, 0.1, Pull({"conv": np.arange(500)}, 0.1))
    assert backend.memory()["indices"] == plain + 4 * 500
    backend.step(images, labels, 0.1)
    assert backend.memory()["indices"] == plain


# Too little memory for the offsets of a single image, which are larger than those of four; then enough again.
PROGRAM = """
import gc
import resource
import numpy as np
from fedmef.device.native_backend import NativeBackend
from fedmef.errors import NetworkError
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import AdaptiveAveragePool, Convolution, Flatten
from tests.sparsity.networks import random_model

network = Network(
    Input((256, 32, 32), (0.5,) * 256, (0.25,) * 256),
    (
        Convolution(
            name="conv", inputs=(INPUT,), module="conv", shape=(256, 256, 3, 3), padding=(1, 1), sparse=True
        ),
        AdaptiveAveragePool(name="pool", inputs=("conv",)),
        Flatten(name="flat", inputs=("pool",)),
    ),
)
model = random_model(network, 0.2)
backend = NativeBackend(network, instructions="baseline")
backend.load(model.state)
images = np.ones((4, 256, 32, 32), np.uint8)
backend.predict(images[:1])  # so that everything else has its memory
expected = backend.predict(images)
gc.collect()
gc.disable()
indices = backend.memory()["indices"]
limits = resource.getrlimit(resource.RLIMIT_DATA)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
data = int(status["VmData"].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (data + 2**18, limits[1]))
try:
    backend.predict(images[:1])
except NetworkError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_DATA, limits)
try:
    print(np.array_equal(backend.predict(images), expected))
except NetworkError as error:
    print(error)
backend.state()
backend.load(model.state)
print(np.array_equal(backend.predict(images), expected), backend.memory()["indices"] == indices)
"""


@pytest.mark.skipif("FEDMEF_KERNELS" in os.environ, reason="a sanitizer takes all memory that there is")
@pytest.mark.skipif(
    sys.platform != "linux" or "baseline" not in available(), reason="of Linux, and of four lanes"
)
def test_too_little_memory_costs_a_batch_and_perhaps_the_state_but_never_the_process() -> None:
    environment = os.environ | {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    refused, after, reloaded = ended.stdout.splitlines() or [""] * 3
    assert refused == "there is not enough memory for a batch; it needs to be smaller", ended
    # Now and then something is refused before the offsets are: then the state is still there, and right.
    assert after in ("the native kernels refuse a batch: a state must be loaded first", "True"), ended
    assert reloaded == "True True", ended


def test_while_a_program_runs_other_threads_are_refused() -> None:
    """What they would change is in use, without Python's lock."""
    one = np.ones(1, np.float32)
    runtime = Runtime("", 1, (1, 256, 256), one, one)
    program = Program(runtime, 64, 1, 4 * 64 * 2**16)
    everything = program.buffer(0, 4 * 64 * 2**16)
    program.read_images(to=everything)
    for _ in range(30):
        program.scale(everything, 1.0)
    larger = Program(runtime, 64, 1, 8 * 64 * 2**16)  # its arena would take the place of the one in use
    all_of_it = larger.buffer(0, 8 * 64 * 2**16)
    images = np.zeros((64, 1, 256, 256), np.uint8)
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            try:
                program.run(images, None)
            except ValueError:  # the other thread was here first
                continue

    calls = {
        "buffer": lambda: program.buffer(0, 64),
        "scale": lambda: program.scale(everything, 1.0),
        "content": lambda: program.content(everything),
        "larger content": lambda: larger.content(all_of_it),
        "last_logits": program.last_logits,
        "seconds": program.seconds,
        "run": lambda: program.run(images, None),
        "add_batch_norm": lambda: runtime.add_batch_norm(
            f"norm{len(refused)}", 1, 0.1, 0.1, False, False, False
        ),
        "shrink": runtime.shrink,
    }
    refused: set[str] = set()
    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(10_000):
            for name in calls.keys() - refused:
                try:
                    calls[name]()
                except ValueError as error:
                    if "another thread" in str(error):
                        refused.add(name)
            if refused == calls.keys():
                break
    finally:
        done.set()
        worker.join()
    assert refused == calls.keys()
