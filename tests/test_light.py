"""The light installation, as on a device: into an empty environment, without PyTorch, it trains a round."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from shutil import copy

import numpy as np
import pytest

pytest.importorskip("fedmef.native._kernels")

from fedmef.costs.noise import noise_model, noise_samples, round_jobs
from fedmef.experiment.settings import make_experiment
from fedmef.wire.broadcast import encode_broadcast

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
NEEDED = {"fedmef", "numpy", "pydantic"}
NEEDED_BY_PYDANTIC = {"annotated-types", "pydantic-core", "typing-extensions", "typing-inspection"}
LISTED = "from importlib.metadata import distributions; print(*(d.name for d in distributions()))"


def run(
    command: Sequence[str | Path], expected: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**usual, **environment})
    assert done.returncode == expected, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs of an environment are that has nothing but `pip install fedmef`."""
    folder = tmp_path_factory.mktemp("light")
    run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"])
    python = folder / "venv" / "bin" / "python"
    # What is compiled already is copied, which saves minutes; test_arm.py installs a wheel that has it.
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    run(build, FEDMEF_NATIVE="off")
    (built,) = folder.glob("*.whl")
    run([*PIP, "--python", python, "install", "-c", ROOT / "constraints.txt", built])
    where = run([python, "-c", "import fedmef.native; print(fedmef.native.__path__[0])"]).stdout.strip()
    assert where.startswith(str(folder))
    copy(str(import_module("fedmef.native._kernels").__file__), where)
    return python.parent


def test_it_brings_no_pytorch_and_nothing_else_that_a_device_does_not_need(light: Path) -> None:
    installed = {
        name.lower().replace("_", "-") for name in run([light / "python", "-c", LISTED]).stdout.split()
    }
    assert installed == NEEDED | NEEDED_BY_PYDANTIC


def test_its_command_says_what_to_install(light: Path) -> None:
    said = run([light / "fedmef", "run"], expected=2).stderr
    assert "pip install 'fedmef[train]'" in said
    assert said.count("\n") == 1


def test_its_device_trains_to_the_same_bits(light: Path, tmp_path: Path) -> None:
    assert "--data" in run([light / "python", "-m", "fedmef.device", "--help"]).stdout
    experiment = make_experiment({"method": "fedmef", "model": "small_cnn", "batch_size": 8})
    model = noise_model(experiment, (3, 16, 16), 10)
    samples = noise_samples(16, (3, 16, 16), 10)
    np.save(tmp_path / "images.npy", samples.images)
    np.save(tmp_path / "labels.npy", samples.labels)
    (tmp_path / "message").write_bytes(encode_broadcast(model, round_jobs(experiment)[-1]))
    for python, answer in ((light / "python", "light"), (Path(sys.executable), "full")):
        files = tmp_path / "message", tmp_path / answer
        run([python, "-m", "fedmef.device", *files, "--data", tmp_path])
    assert (tmp_path / "light").read_bytes() == (tmp_path / "full").read_bytes()
