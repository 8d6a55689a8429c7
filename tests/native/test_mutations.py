"""Nothing from outside makes the extension crash: it works, or is refused with a typed error."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fedmef.native._kernels")

import numpy as np

from fedmef.device.native_backend import NativeBackend
from fedmef.errors import NetworkError
from fedmef.methods.extrusion import Pull
from fedmef.native import _kernels
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import Convolution, Flatten, Operation
from tests.native.mutated_cases import run
from tests.native.random_networks import random_state

ROOT = Path(__file__).parents[2]
QUICK_CASES, SLOW_CASES, PROCESSES = 300, 20_000, 2
FLOATS = np.ones(1, dtype=np.float32)


def convolution(
    shape: tuple[int, int, int], *, window: tuple[int, int, int, int], **settings: object
) -> Network:
    """A network of one sparse convolution."""
    steps: list[Operation] = [
        Convolution(name="conv", inputs=(INPUT,), module="conv", shape=window, sparse=True, **settings),  # type: ignore[arg-type]
        Flatten(name="flat", inputs=("conv",)),
    ]
    return Network(Input(shape, (0.5,) * shape[0], (0.25,) * shape[0]), tuple(steps))


@pytest.mark.parametrize("part", range(3))
def test_mutations_work_or_are_refused(part: int) -> None:
    outcomes = {run(number) for number in range(part, QUICK_CASES, 3)}
    assert {"ran", "no network", "raw ran", "raw refused"} <= outcomes


def test_sizes_that_kernels_cannot_count_are_refused_before_memory_is_taken() -> None:
    with pytest.raises(NetworkError, match="images"):
        NativeBackend(convolution((1, 1, 2**31), window=(1, 1, 1, 1)))
    with pytest.raises(NetworkError, match=r"'conv'.*too large"):
        NativeBackend(convolution((1, 1, 2**24), window=(1, 1, 400, 1), padding=(200, 0)))
    with pytest.raises(NetworkError, match=r"'conv'.*too large"):
        NativeBackend(convolution((2**20, 1, 1), window=(1, 2**20, 1, 1), stride=(30, 30)))
    backend = NativeBackend(convolution((1, 8, 8), window=(2**24, 1, 1, 1)))
    images, labels = np.zeros((9, 1, 8, 8), dtype=np.uint8), np.zeros(9, dtype=np.int64)
    with pytest.raises(NetworkError, match=r"too large|GB"):
        backend.predict(images)
    with pytest.raises(NetworkError, match=r"too large|GB"):
        backend.step(images, labels, 0.1)


def test_batches_pulls_and_counts_that_do_not_fit_are_refused_or_cut() -> None:
    backend = NativeBackend(network := convolution((2, 4, 4), window=(3, 2, 3, 3), bias=True))
    images, labels = np.zeros((3, 2, 4, 4), dtype=np.uint8), np.array([0, 1, 11])
    with pytest.raises(NetworkError, match="loaded first"):
        backend.step(images, labels, 0.1)
    state = random_state(network, 0)
    backend.load(state)
    active = state["conv.values"].size
    for wrong in (np.array([active]), np.array([-1]), np.zeros((1, 1), dtype=np.int64)):
        with pytest.raises(NetworkError, match="marked"):
            backend.step(images, labels, 0.1, Pull({"conv": wrong}, 0.1))
    for wrong_labels in (np.array([0, 1, 12]), np.array([0, -1, 2]), labels[:2], labels[None], labels / 2):
        with pytest.raises(NetworkError, match="label"):
            backend.step(images, wrong_labels, 0.1)
    with pytest.raises(NetworkError, match="at least one image"):
        backend.step(images[:0], labels[:0], 0.1)
    assert backend.growth(images + 1, labels, {"conv": 2**70})["conv"].positions.size <= 54 - active
    assert backend.growth(images, labels, {"conv": -(2**70)})["conv"].positions.size == 0


def test_instructions_must_fit_each_other_and_the_arena() -> None:
    runtime = _kernels.Runtime("", 1, (1, 8, 8), FLOATS, FLOATS)
    program = _kernels.Program(runtime, 1, 1, 4096)
    with pytest.raises(ValueError, match="beyond the arena"):
        program.buffer(64, 4096)
    with pytest.raises(ValueError, match="count"):
        program.buffer(2**64 - 64, 128)
    image, cache = program.buffer(0, 256), program.buffer(256, 1024)
    overlapping = program.buffer(512, 256)
    with pytest.raises(ValueError, match="no such buffer"):
        program.read_images(3)
    with pytest.raises(ValueError, match="smaller than"):
        program.relu(image, count=65, upper=np.inf, at_zero=False)
    with pytest.raises(ValueError, match="count"):
        program.copy(image, 0, 2**63, cache, 2**64 - 1, 2**63, 2, accumulate=False)
    with pytest.raises(ValueError, match="pruned where it is"):
        program.prune(overlapping, cache, (1, 8, 8), 60, "fp32")
    program.prune(image, cache, (1, 8, 8), 60, "fp32")
    window = (1, 1, 1, 1, 0, 0, 1, 1)
    runtime.add_layer("a", (1, 8, 8), (1, 8, 8), window, 1, True, False, False, False, None, True, True, True)
    program.weight_gradient("a", image, cache=cache)
    program.scale(overlapping, 2.0)
    with pytest.raises(ValueError, match="nothing was pruned"):
        program.weight_gradient("a", image, cache=cache)


@pytest.mark.slow
@pytest.mark.skipif("FEDMEF_KERNELS" in os.environ, reason="this is a run of `make sanitize` itself")
def test_sanitizers_find_nothing_in_mutations_and_kernel_tests() -> None:
    libraries = sanitizer_libraries()
    if libraries is None:
        pytest.skip("there is no C++ compiler with AddressSanitizer (libasan)")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTEST_"))
    }
    subprocess.run(
        ["make", "-o", ".venv/.ready", "-o", ".venv/.dev", "sanitize", "SANITIZED=--version"],
        cwd=ROOT,
        env=environment,
        check=True,
    )
    environment |= {
        "LD_PRELOAD": libraries,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
        "FEDMEF_KERNELS": "build/sanitize/installed",
    }
    share = SLOW_CASES // PROCESSES
    commands = [
        ["tests.native.mutated_cases", str(first), str(share)] for first in range(0, SLOW_CASES, share)
    ]
    started = [start([sys.executable, "-m", *command], environment) for command in commands]
    for process in started:
        output, _ = process.communicate()
        assert process.returncode == 0, output[-5000:]
        assert "build/sanitize/installed" in output
    tests = start(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-n",
            "2",
            "-m",
            "not slow",
            "tests/native",
        ],
        environment,
    )
    output, _ = tests.communicate()
    assert tests.returncode == 0, output[-5000:]


def sanitizer_libraries() -> str | None:
    """What must be loaded first: AddressSanitizer, and the library whose exceptions it wants to see."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or shutil.which("make") is None:
        return None
    commands = [[compiler, f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so.6")]
    found = [
        subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        for command in commands
    ]
    return " ".join(found) if all(Path(library).is_absolute() for library in found) else None


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
