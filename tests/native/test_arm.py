"""64-bit ARM, emulated by qemu: the kernels compute what PyTorch does, and a device what an x86-64 one does.

The wheel is built and installed as for a real board. Emulation says nothing about speed.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fedmef.native._kernels")

from fedmef.costs.noise import noise_model, noise_samples, round_jobs
from fedmef.experiment.settings import make_experiment
from fedmef.sparsity.model import Model
from fedmef.wire.broadcast import encode_broadcast
from fedmef.wire.update import Update, decode_update
from tests.native import arm
from tests.native.arm import ROOT, Arm
from tests.native.emulated import EMULATOR

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(arm.missing()), reason=arm.missing()),
    pytest.mark.skipif(EMULATOR in os.environ, reason="these are the tests that emulate"),
]

# Of the tests of agreement those that take seconds each: every kernel, every batch size, random networks.
QUICK = "batch_size or depthwise or half or random_networks or (predictions and small_cnn)"
SHAPE, CLASSES = (3, 32, 32), 10
SETTINGS = {
    "method": "fedmef",
    "model": "resnet18",
    "width": 8,
    "sparsity": 0.9,
    "activation_sparsity": 0.9,
    "batch_size": 16,
    "learning_rate": 0.01,
    "local_epochs": 1,
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Arm:
    return arm.install(tmp_path_factory.mktemp("arm"))


def test_the_wheel_has_the_neon_kernels(installed: Arm) -> None:
    assert "aarch64" in installed.wheel.name
    assert "manylinux" in installed.wheel.name
    done = installed.run("-c", "from fedmef.native._kernels import available; print(*available())")
    assert done.stdout.split() == ["neon"]


def test_the_kernels_refuse_and_fuse_as_they_do_here(installed: Arm) -> None:
    files = ["tests/native/test_refusals.py", "tests/native/test_fusion.py"]
    # The common conftest.py imports PyTorch, which is not there.
    installed.run("-m", "pytest", "--quiet", "--noconftest", "-p", "no:cacheprovider", *files)


def test_the_kernels_agree_with_pytorch(installed: Arm) -> None:
    """The tests of agreement themselves: PyTorch runs here, the kernels are emulated."""
    files = ["tests/native/test_agreement.py", "tests/native/test_random_networks.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--verbose", "-p", "no:cacheprovider", *files, "-k", QUICK],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, EMULATOR: shlex.join(installed.command)},
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "neon] PASSED" in done.stdout  # and not this machine's kernels
    assert "avx2" not in done.stdout


@pytest.fixture(scope="module")
def model() -> Model:
    return noise_model(make_experiment(SETTINGS), SHAPE, CLASSES)


@pytest.mark.parametrize("adjusts", [False, True])
def test_a_round_gives_what_it_gives_here(
    installed: Arm, model: Model, adjusts: bool, tmp_path: Path
) -> None:
    experiment = make_experiment(SETTINGS)
    (job,) = (job for job in round_jobs(experiment) if job.adjusts == adjusts)
    (tmp_path / "message").write_bytes(encode_broadcast(model, job))
    samples = noise_samples(2 * experiment.batch_size, SHAPE, CLASSES)
    np.save(tmp_path / "images.npy", samples.images)
    np.save(tmp_path / "labels.npy", samples.labels)
    device = ["-m", "fedmef.device", str(tmp_path / "message")]
    data = ["--data", str(tmp_path)]

    installed.run(*device, str(tmp_path / "arm"), *data)
    subprocess.run([sys.executable, *device, str(tmp_path / "here"), *data], check=True)

    found, expected = (
        decode_update((tmp_path / name).read_bytes(), model.network) for name in ("arm", "here")
    )
    assert found.samples == expected.samples
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert found.weights.keys() == expected.weights.keys()
    for name, weights in expected.weights.items():
        assert distance(found.weights[name], weights) <= 1e-4, name
    assert distance(change(found, model), change(expected, model)) <= 1e-4
    assert bool(expected.extras.growth) == adjusts
    assert_same_growth(found, expected)


def change(update: Update, model: Model) -> np.ndarray:
    """What a round did to the weights, all in one vector."""
    return np.concatenate(
        [(update.weights[name] - model.state[name]).ravel() for name in sorted(update.weights)]
    )


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Of two arrays, relative to their length."""
    return float(np.linalg.norm((one - other).ravel())) / max(float(np.linalg.norm(other.ravel())), 1e-30)


def assert_same_growth(found: Update, expected: Update) -> None:
    """Of nearly equal gradients either may be among the largest, so a few positions may differ."""
    for name, scores in expected.extras.growth.items():
        other = found.extras.growth[name]
        assert len(other.positions) == len(scores.positions)
        _, mine, theirs = np.intersect1d(other.positions, scores.positions, return_indices=True)
        assert len(mine) >= 0.98 * len(scores.positions) - 1, name
        assert distance(other.gradients[mine], scores.gradients[theirs]) <= 1e-3, name
