"""What mutated networks, states and instructions do to the native backend: one number, one reproducible case.

`python -m tests.native.mutated_cases FIRST COUNT` runs some; with FEDMEF_KERNELS, those of a sanitized build.
"""

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator

import tests.native.conftest  # noqa: F401
from fedmef.device.native_backend import NativeBackend
from fedmef.errors import FedmefError
from fedmef.native import _kernels
from fedmef.native.lowering import lower
from fedmef.native.plan import Layout, Plan
from fedmef.sparsity.network import INPUT, Network
from fedmef.sparsity.operations import Convolution
from tests.native import mutations
from tests.native.random_networks import random_state
from tests.native.small_networks import large_network, networks

MOST_WORK = 1_000_000  # of an image's results, weights and multiplications: larger networks are only planned
REFUSALS = (
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
    AttributeError,
)  # clean exceptions of the binding


def run(number: int) -> str:
    """Run a case; anything but success and a clean refusal is raised. Returns which of them it was."""
    random = np.random.default_rng(number)
    with np.errstate(all="ignore"):
        if random.random() < 0.3:
            return _raw_case(random)
        return _backend_case(random)


def _backend_case(random: Generator) -> str:
    table = large_network() if random.random() < 0.01 else _any_network(random)
    mutated = random.random() < 0.7
    try:
        network = Network.from_json(
            json.dumps(mutations.mutated_network(table, random) if mutated else table).encode()
        )
    except FedmefError:
        return "no network"
    try:
        backend = NativeBackend(
            network,
            threads=2 if random.random() < 0.1 else 1,
            instructions=str(random.choice(_kernels.available())),
            inspect=random.random() < 0.5,
        )
        if _work(network) > MOST_WORK:
            return _only_plan(backend)
    except FedmefError:
        return "not supported"
    return " ".join(sorted({_use(backend, random) for _ in range(2)}))


def _use(backend: NativeBackend, random: Generator) -> str:
    """All that a device does with a backend; what one call refuses does not keep the next from working."""
    network, refused = backend.network, 0
    state = random_state(network, int(random.integers(2**32)))
    if random.random() < 0.3:
        state = mutations.mutated_mask(state, random)
    if random.random() < 0.4:
        state = mutations.mutated_state(state, random)
    calls: list[Callable[[], object]] = [
        lambda: backend.load(state),
        lambda: backend.step(*mutations.batch(network, random), 0.1, mutations.pull(network, state, random)),
        lambda: backend.growth(*mutations.batch(network, random), mutations.counts(network, random)),
        lambda: backend.predict(mutations.batch(network, random)[0]),
        lambda: backend.step(*mutations.batch(network, random), float(random.choice([0.1, 1e38, np.nan]))),
        backend.state,
    ]
    for call in calls:
        try:
            call()
        except FedmefError:
            refused += 1
    return "refused" if refused == len(calls) - 1 else "ran"


def _only_plan(backend: NativeBackend) -> str:
    """A large network without a state: programs are made, or refused, and nothing runs."""
    if math.prod(backend.network.input.shape) > MOST_WORK:
        return "large images"
    images = np.zeros((3, *backend.network.input.shape), dtype=np.uint8)
    for call in (
        lambda: backend.predict(images),
        lambda: backend.step(images, np.zeros(3, dtype=np.int64), 0.1),
    ):
        try:
            call()
        except FedmefError:
            continue
        raise AssertionError("a network without a state has run")
    return "too large"


def _raw_case(random: Generator) -> str:
    """The binding itself: layers, states and instructions that no network would lead to."""
    network = Network.from_json(json.dumps(_any_network(random)).encode())
    backend = NativeBackend(network, instructions=str(random.choice(_kernels.available())))
    state = random_state(network, int(random.integers(2**32)))
    runtime = backend._runtime
    backend.load(state)
    images = int(random.choice([1, 3, 8, 9]))
    mode = ("train", "train", "growth", "predict")[random.integers(4)]
    plan = lower(network, Layout.of(images, runtime.lanes), mode, network.sparse_layers)  # type: ignore[arg-type]
    pixels = random.integers(0, 256, (images, *network.input.shape), dtype=np.uint8)
    labels = random.integers(0, network.classes, images)
    try:
        if random.random() < 0.3:
            _mutated_calls(runtime, random)
        if random.random() < 0.9:
            plan = mutations.mutated_plan(plan, random)
        program = _program(runtime, plan, random)
        for name in network.sparse_layers:
            runtime.grow(name, 3)
        program.run(
            pixels, labels, 0.1, 0.1, momentum=float(random.choice([0, 0.9])), record=random.random() < 0.5
        )
        for number in range(len(plan.sizes)):
            program.content(number)
        program.last_logits()
    except REFUSALS:
        return "raw refused"
    finally:
        for name in network.layers:
            runtime.layer_arrays(name)
            runtime.layer_arrays(name, gradients=True)
    return "raw ran"


def _program(runtime: _kernels.Runtime, plan: Plan, random: Generator) -> _kernels.Program:
    arguments: list[Any] = [
        runtime,
        plan.layout.images,
        plan.layout.lanes,
        min(plan.arena, 2**60) if plan.arena > 2**24 else plan.arena,
    ]
    if random.random() < 0.05:
        arguments = mutations.mutated_arguments(arguments, random)
    program = _kernels.Program(*arguments)
    for offset, size in zip(plan.offsets, plan.sizes, strict=True):
        program.buffer(offset, size)
    for instruction in plan.instructions:
        getattr(program, instruction.kind)(**instruction.buffers, **instruction.options)
    return program


def _mutated_calls(runtime: _kernels.Runtime, random: Generator) -> None:
    """Layers and arrays with one argument that is another."""
    floats = np.ones(4, dtype=np.float32)
    calls: list[tuple[Callable[..., object], list[Any]]] = [
        (_kernels.Runtime, ["", 1, (1, 2, 2), floats[:1], floats[:1]]),
        (
            runtime.add_layer,
            [
                "a",
                (2, 5, 5),
                (2, 3, 3),
                (3, 3, 2, 2, 1, 1, 1, 1),
                1,
                True,
                False,
                True,
                True,
                (1.0, 1e-6, True, 2),
            ]
            + [True] * 3,
        ),
        (runtime.add_batch_norm, ["b", 4, 1e-5, 0.1, True, True, True]),
        (runtime.load_layer, ["conv1", floats, np.full(1, 15, dtype=np.uint8), floats, floats]),
        (runtime.load_batch_norm, ["norm", floats, floats, 3, floats, floats]),
        (runtime.mark, ["conv1", np.zeros(2, dtype=np.int64)]),
        (runtime.marked_squares, ["conv1"]),
        (runtime.grow, ["conv1", 3]),
        (runtime.scores, ["conv1"]),
        (runtime.mask, ["conv1"]),
        (runtime.batches, ["norm"]),
    ]
    if random.random() < 0.2:
        runtime.shrink()
    for call, arguments in calls:
        try:
            call(*mutations.mutated_arguments(arguments, random))
        except REFUSALS:
            continue


def _any_network(random: Generator) -> mutations.Table:
    return networks()[random.integers(len(networks()))]


def _work(network: Network) -> int:
    """Elements, weights and multiplications; scratch memory grows with padding and strides."""
    total = sum(math.prod(shape) for shape in network.shapes.values())
    for layer in network.layers.values():
        total += layer.size * math.prod(network.shapes[layer.name][1:])
        if isinstance(layer, Convolution):
            shape = network.shapes[layer.inputs[0]]
            padded = math.prod(side + 2 * pad for side, pad in zip(shape[1:], layer.padding, strict=True))
            total += shape[0] * (padded + math.prod(layer.stride))
    return total + math.prod(network.shapes[INPUT])


def main(first: int, count: int) -> None:
    """Run cases, say how they went, and stop at the first that went wrong."""
    begin, outcomes = time.monotonic(), Counter[str]()
    for number in range(first, first + count):
        try:
            outcomes[run(number)] += 1
        except BaseException:
            print(f"case {number}", flush=True)
            raise
    print(_kernels.__file__, dict(outcomes), f"{time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
