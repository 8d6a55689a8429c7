"""One of ten devices lies, in every round: the result hardly changes, and the record names it."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

import fedmef
from fedmef.data import Dataset
from fedmef.device.choice import missing_kernels
from fedmef.experiment.faults import LIES
from fedmef.experiment.settings import Experiment
from fedmef.federation.preparation import open_dataset
from fedmef.federation.simulated.fleet import partition
from fedmef.federation.update_checks import UpdateChecks
from fedmef.runs.directory import Run
from tests.federation.small import TINY, digest, steady

needs_kernels = pytest.mark.skipif(bool(missing_kernels()), reason="the native kernels are not built")

SETTINGS: dict[str, Any] = {
    "width": 8,
    "devices": 10,
    "devices_per_round": 10,
    "rounds": 6,
    "local_epochs": 2,
    "alpha": 2.0,
    "seed": 1,
    "adjust_every": 2,
    "adjust_until": 5,
    "engine": "inline",
}
OFF: dict[str, Any] = {"max_norm_ratio": 0.0, "max_samples_ratio": 0.0}
POINTS = 0.03


@cache
def digits() -> Dataset:
    return open_dataset(Experiment(**SETTINGS))


@cache
def liar() -> int:
    """A device with as much data as most: its data are lost with it."""
    return int(np.argsort([len(share) for share in partition(Experiment(**SETTINGS), digits())])[5])


def always(kind: str) -> str:
    return ",".join(f"{kind}@{number}:{liar()}" for number in range(6))


@pytest.fixture(scope="module")
def honest() -> Run:
    return fedmef.run(Experiment(**SETTINGS), Path(mkdtemp()) / "honest", dataset=digits())


def named(run: Run) -> list[set[int]]:
    return [{failed.device for failed in record.rejected + record.doubted} for record in run.rounds]


def test_an_honest_run_loses_nothing(tmp_path: Path, honest: Run) -> None:
    """Not a bit, and not a device."""
    unchecked = fedmef.run(Experiment(**SETTINGS, **OFF), tmp_path / "unchecked", dataset=digits())
    assert digest(honest.path) == digest(unchecked.path)
    assert named(honest) == [set()] * 6
    assert honest.summary.test_accuracy > 0.9


# Of "forge" only the rounds that adjust can be forged, and the first answer of "replay" is honest.
ROUNDS = {"forge": [2, 4], "replay": [1, 2, 3, 4, 5]}
QUICK = ("zeros", "largest")


@pytest.mark.parametrize(
    "kind", [*QUICK, *(pytest.param(kind, marks=pytest.mark.slow) for kind in LIES if kind not in QUICK)]
)
def test_a_liar_is_named_and_changes_little(tmp_path: Path, honest: Run, kind: str) -> None:
    experiment = Experiment(**SETTINGS, faults=always(kind))
    run = fedmef.run(experiment, tmp_path / "run", dataset=digits())
    assert run.summary.test_accuracy >= honest.summary.test_accuracy - POINTS
    assert named(run) == [{liar()} if number in ROUNDS.get(kind, range(6)) else set() for number in range(6)]
    assert run.summary.lost_updates == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zeros", "huge"])
def test_the_same_where_nobody_knows_what_devices_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, honest: Run, kind: str
) -> None:
    """As on a fleet: every device says itself how many samples it has."""
    of = UpdateChecks.of
    monkeypatch.setattr(UpdateChecks, "of", lambda experiment, samples: of(experiment))
    run = fedmef.run(Experiment(**SETTINGS, faults=always(kind)), tmp_path / "run", dataset=digits())
    assert run.summary.test_accuracy >= honest.summary.test_accuracy - POINTS
    assert named(run) == [{liar()}] * 6
    believed = fedmef.run(Experiment(**SETTINGS), tmp_path / "honest", dataset=digits())
    assert digest(believed.path) == digest(honest.path)


@pytest.mark.slow
def test_without_the_checks_a_liar_ruins_the_run(tmp_path: Path, honest: Run) -> None:
    """Or the tests above would show nothing."""
    run = fedmef.run(Experiment(**SETTINGS, **OFF, faults=always("huge")), tmp_path / "run", dataset=digits())
    assert run.summary.test_accuracy < honest.summary.test_accuracy - 0.5


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("kind", ["huge", "largest", "forge"])
def test_a_liar_among_few_stops_nobody(tmp_path: Path, devices: int, kind: str) -> None:
    """All rounds but the first adjust. A round whose only device lies is tried with another one."""
    faults = ",".join(f"{kind}@{number}:2" for number in range(4))
    settings = {**TINY, "devices": 3, "devices_per_round": devices, "rounds": 4, "faults": faults}
    run = fedmef.run(Experiment(**settings), tmp_path / "run")
    blamed = [failed for record in run.rounds for failed in record.rejected]
    assert {failed.device for failed in blamed} == {2}
    assert all("is plausible" in failed.reason for failed in blamed)
    assert all(np.isfinite(array).all() for name, array in run.model().state.items() if "mask" not in name)


@needs_kernels
def test_every_engine_names_the_same_liars_and_ends_in_the_same_bits(tmp_path: Path) -> None:
    faults = "replay@0:2,replay@1:2,forge@1:1,huge@2:0,zeros@2:1,impostor@3:2"
    settings = {**TINY, "devices": 4, "devices_per_round": 4, "rounds": 4, "faults": faults, "workers": 2}
    inline = fedmef.run(Experiment(**settings), tmp_path / "inline")
    assert named(inline) == [set(), {1, 2}, {0, 1}, {2}]
    processes = fedmef.run(Experiment(**{**settings, "engine": "processes"}), tmp_path / "processes")
    assert steady(processes) == steady(inline)
    assert digest(processes.path) == digest(inline.path)


@pytest.mark.parametrize("method", ["fedmef", "fedtiny", "feddst", "prunefl", "zerofl", "fedavg", "fl_pqsu"])
def test_honest_devices_that_differ_much_are_all_believed(tmp_path: Path, method: str) -> None:
    settings = {**TINY, "method": method, "alpha": 0.1, "devices": 8, "devices_per_round": 6, "rounds": 5}
    run = fedmef.run(Experiment(**settings), tmp_path / "run")
    assert run.summary.rejected_updates == 0
    assert all(record.doubted == [] for record in run.rounds)
