"""A device's whole process, measured. Processes are real here; the networks are small."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.device_process import break_down
from fedmef.costs import device_process
from fedmef.costs.device_process import (
    ProcessCost,
    Rounds,
    ignored_settings,
    measure_process,
    measure_torch_dense,
    native_command,
    surroundings,
    write_rounds,
)
from fedmef.device import choice
from fedmef.device.choice import missing_kernels
from fedmef.errors import FedmefError, SparsityError, UserError
from fedmef.experiment.settings import Experiment, make_experiment
from tests.costs.formula import SHAPE, process
from tests.small import small

native = pytest.mark.skipif(bool(missing_kernels()), reason="needs the native kernels")

ADJUSTING: dict[str, Any] = {"rounds": 4, "adjust_every": 2, "adjust_until": 3}
OWN_MODEL = """
from torch import nn

print("a model that talks")

def network(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes),
    )
"""
DEADLY = """
import os
from fedmef.methods.fedmef import FedMef

class Deadly(FedMef):
    def train(self, local, job):
        os._exit(9)
"""


@native
def test_a_sparse_device_without_pytorch_needs_a_fraction_of_pytorchs_dense_one() -> None:
    experiment = small(width=8, batch_size=32, **ADJUSTING)
    own, dense = (measure(experiment, (1, 8, 8), 10) for measure in (measure_process, measure_torch_dense))
    assert (own.backend, dense.backend) == ("native", "torch")
    assert 20e6 < own.process < 64e6  # an interpreter and NumPy at the least
    assert dense.process > 150e6  # PyTorch alone
    assert own.seconds > 0
    assert own.exchange.up_adjusting is not None
    assert own.exchange.up_adjusting > own.exchange.up > 0
    assert dense.exchange.up_adjusting is None


@native
def test_a_larger_batch_needs_more() -> None:
    few, many = (
        measure_process(small(width=8, batch_size=size), (1, 28, 28), 10).process for size in (8, 512)
    )
    assert many > few + 512 * 28 * 28 * 4  # one dense image of each at the very least


@native
def test_the_process_of_a_device_has_no_heavy_libraries(tmp_path: Path) -> None:
    experiment = small(**ADJUSTING)
    rounds = write_rounds(experiment, (1, 8, 8), 10, tmp_path)
    assert len(rounds.messages) == 2
    program = (
        "import sys; from fedmef.device.__main__ import main; assert main(sys.argv[1:]) == 0; "
        "print(*sorted({'torch', 'pydantic', 'typer', 'rich', 'numpy'} & sys.modules.keys()))"
    )
    for number, answer in enumerate(rounds.answers):
        command = native_command(rounds, number, experiment.method)
        arguments = command[command.index("fedmef.device") + 1 :]
        ended = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            env=surroundings(),
            check=True,
        )
        assert ended.stdout.split() == ["numpy"]
        assert answer.stat().st_size > 0


def test_without_the_kernels_a_device_is_measured_on_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "missing_kernels", lambda: "they are not built")
    assert write_rounds(small(), (1, 8, 8), 10, tmp_path).backend == "torch"
    with pytest.raises(UserError, match="backend = 'native': they are not built"):
        write_rounds(small(backend="native"), (1, 8, 8), 10, tmp_path)


def test_what_changes_no_measurement_is_measured_once(measured: list[Experiment]) -> None:
    for changes in (
        {"device_memory": "1GB"},
        {"data_dir": "/nowhere"},
        {"accelerator": "cuda"},
        {"seed": 3, "workers": 2},
    ):
        measure_process(make_experiment(changes), SHAPE, 10)
    assert measured == [Experiment()] * 4
    measured.clear()
    for sparsity in (0.8, 0.9):
        measure_torch_dense(Experiment(sparsity=sparsity), SHAPE, 10)
        measure_process(Experiment(method="fedavg", sparsity=sparsity), SHAPE, 10)
    assert measured == [Experiment(method="fedavg")] * 4


def test_the_same_configuration_is_measured_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Experiment] = []

    def write(experiment: Experiment, *_: object) -> Rounds:
        asked.append(experiment)
        return Rounds("native", (), ())

    monkeypatch.setattr(device_process, "write_rounds", write)
    monkeypatch.setattr(device_process, "_on_native", lambda *_: (1, [9.0, 2.0]))
    monkeypatch.setattr(device_process, "_exchange", lambda _: process(0).exchange)
    device_process._once.cache_clear()
    costs = [measure_process(small(seed=seed), SHAPE, 10) for seed in (0, 1)]
    device_process._once.cache_clear()
    assert costs == [ProcessCost("native", 1, 2.0, process(0).exchange)] * 2
    assert len(asked) == 1


def test_only_the_heavier_round_takes_several_steps(tmp_path: Path) -> None:
    adjusting = write_rounds(small(batch_size=4, **ADJUSTING), (1, 8, 8), 10, tmp_path)
    batches = [len(np.load(folder / "images.npy")) // 4 for folder in adjusting.data]
    assert batches == [
        1,
        device_process.STEPS if adjusting.backend == "native" else device_process.TORCH_STEPS,
    ]


def test_methods_that_a_number_tells_apart_are_measured_once(measured: list[Experiment]) -> None:
    for method in ("fedmef", "fedmef_restart"):
        measure_process(Experiment(method=method), SHAPE, 10)
    assert measured == [Experiment(method="fedmef")] * 2


@pytest.mark.parametrize(
    ("method", "ignored"),
    [
        ("fedavg", {"sparsity", "activation_sparsity", "cache_dtype"}),
        ("fedavg_sap", {"sparsity"}),
        ("fl_pqsu", {"activation_sparsity", "cache_dtype"}),
        ("fedmef", set()),
        ("zerofl", set()),
    ],
)
def test_what_means_nothing_to_a_method(method: str, ignored: set[str]) -> None:
    assert ignored_settings(Experiment(method=method)) == ignored


def test_a_users_own_network_is_found_and_its_mistakes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    cost = measure_process(Experiment(model="mine:network", method="fedavg", batch_size=8), (3, 8, 8), 4)
    parameters = 3 * 8 * 9 + 8 + 8 * 8 * 9 + 8 + 8 * 4 + 4
    assert cost.exchange.up > 4 * parameters
    assert capsys.readouterr().out == ""
    with pytest.raises(UserError, match="no module 'theirs'"):
        measure_process(Experiment(model="theirs:network"), (3, 8, 8), 4)


def test_a_sparsity_that_starves_a_layer_is_told_from_other_mistakes() -> None:
    with pytest.raises(SparsityError, match=r"sparsity = 0\.999"):
        measure_process(Experiment(sparsity=0.999, width=4), (1, 8, 8), 10)
    with pytest.raises(UserError) as other:
        measure_process(Experiment(), (1, 1, 1), 10)
    assert not isinstance(other.value, SparsityError)


@pytest.mark.parametrize("backend", ["torch", pytest.param("native", marks=native)])
def test_a_process_that_dies_is_a_failure_and_no_mistake(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FedmefError, match="ended with 9: killed") as died:
        measure_process(small("deadly:Deadly", backend=backend), (1, 8, 8), 10)
    assert not isinstance(died.value, UserError)


@native
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_breakdown_leaves_little_of_the_peak_unexplained() -> None:
    found = break_down("width16")
    parts = found["parts"]
    assert sum(parts.values()) == found["peak"]
    assert abs(parts["rest"]) < 0.1 * found["peak"]
    assert all(parts[name] > 0 for name in ("interpreter", "numpy", "weights", "caches", "dense buffers"))
