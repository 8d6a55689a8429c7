"""Which engine an experiment gets, and that all of them give the same bits, whatever they carry.

Flower's simulation is here where it is slow; `flower/test_simulation.py` has the rest.
"""

from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.device.choice import missing_kernels
from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.federation import engines
from fedmef.federation.engines import start_engine
from fedmef.federation.engines.inline import InlineEngine
from fedmef.federation.engines.processes import ProcessEngine
from fedmef.federation.preparation import open_dataset
from fedmef.federation.simulated.fleet import Fleet
from fedmef.runs.directory import Run
from fedmef.wire.store import Store
from tests.federation.small import FIVE_ADJUSTMENTS, SMALL, TINY, digest, steady

OWN = "tests.federation.own_parts"
EVERY_ENGINE = [
    ("inline", 1),
    ("processes", 1),
    ("processes", 2),
    pytest.param("flower", 2, marks=pytest.mark.slow),
]

# Their workers differ: the shipped device on native, a process with all of the simulation on torch.
BACKENDS = [
    pytest.param("native", marks=pytest.mark.skipif(bool(missing_kernels()), reason="no kernels")),
    pytest.param("torch", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=BACKENDS)
def inline_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    experiment = Experiment(**FIVE_ADJUSTMENTS, backend=request.param)
    return fedmef.run(experiment, tmp_path_factory.mktemp("runs") / "inline")


@pytest.mark.parametrize(("engine", "workers"), EVERY_ENGINE)
def test_every_engine_ends_in_the_same_bits(
    inline_run: Run, tmp_path: Path, engine: str, workers: int
) -> None:
    settings = {**inline_run.experiment.model_dump(), "engine": engine, "workers": workers}
    run = fedmef.run(Experiment(**settings), tmp_path / "run")
    assert digest(run.path) == digest(inline_run.path)
    assert steady(run) == steady(inline_run)
    assert [[report.device for report in record.device_reports] for record in run.rounds] == [
        record.devices for record in run.rounds
    ]


@pytest.fixture(scope="module")
def own_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("own")
    return {
        name: fedmef.run(Experiment(**{**settings, "engine": "inline"}), folder / name)
        for name, settings in OWN_PARTS.items()
    }


OWN_TINY: dict[str, Any] = {**TINY, "width": None, "rounds": 3}
OWN_PARTS: dict[str, dict[str, Any]] = {
    "own": {**OWN_TINY, "method": f"{OWN}:Lazy", "model": f"{OWN}:own_network"},
    "sparse": {**OWN_TINY, "method": f"{OWN}:LazyFedMef", "model": f"{OWN}:own_network"},
    "opaque": {**OWN_TINY, "method": "fedmef", "model": f"{OWN}:opaque_network"},
    "opaque_feddst": {**OWN_TINY, "method": "feddst", "model": f"{OWN}:opaque_network"},
    "untraceable": {**OWN_TINY, "method": "fedavg", "model": f"{OWN}:Branching"},
    "doubling": {**OWN_TINY, "method": f"{OWN}:Lazy", "model": f"{OWN}:doubling_network"},
}


@pytest.mark.parametrize(("engine", "workers"), EVERY_ENGINE[2:])
@pytest.mark.parametrize("parts", OWN_PARTS)
def test_a_method_and_a_network_of_ones_own_run_in_every_engine(
    own_runs: dict[str, Run], tmp_path: Path, parts: str, engine: str, workers: int
) -> None:
    settings = {**OWN_PARTS[parts], "engine": engine, "workers": workers}
    run = fedmef.run(Experiment(**settings), tmp_path / "run")
    assert len(run.rounds) == 3
    assert digest(run.path) == digest(own_runs[parts].path)


def test_what_cannot_be_described_is_trained_by_its_own_code(own_runs: dict[str, Run]) -> None:
    described = {name: run.network.opaque is None for name, run in own_runs.items()}
    assert described == {
        "own": True,
        "sparse": True,
        "opaque": False,
        "opaque_feddst": False,
        "untraceable": False,
        "doubling": False,
    }
    assert own_runs["opaque"].network.sparse_layers  # the rest of it is sparse all the same
    # It has the parameters of the other, but its logits are doubled in training.
    assert own_runs["doubling"].rounds[0].train_loss != own_runs["own"].rounds[0].train_loss


@pytest.mark.parametrize(("engine", "workers"), EVERY_ENGINE[1:])
def test_a_network_that_fails_says_why(tmp_path: Path, engine: str, workers: int) -> None:
    experiment = Experiment(
        **{**SMALL, "width": None, "engine": engine, "workers": workers},
        method="fedavg",
        model=f"{OWN}:failing_network",
    )
    with pytest.raises(FedmefError, match=r"^device \d failed: RuntimeError: out of coffee$"):
        fedmef.run(experiment, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("engine", ["processes", "flower"])
def test_a_device_that_raises_hangs_or_is_killed_costs_its_own_update(
    engine: str, backend: str, tmp_path: Path
) -> None:
    if engine == "flower":
        pytest.importorskip("flwr")
        pytest.importorskip("ray")
    settings = {**SMALL, "devices": 5, "devices_per_round": 5, "rounds": 2, "method": f"{OWN}:Moody"}
    settings |= {"engine": engine, "backend": backend, "workers": 2, "deadline": 20.0, "min_devices": 2}
    run = fedmef.run(Experiment(**settings), tmp_path / "run")
    first, second = run.rounds
    reasons = {failed.device: failed.reason for failed in first.lost}
    assert reasons.keys() == {0, 1, 2}
    assert "ZeroDivisionError" in reasons[0]
    assert "no answer within the deadline of 20 s" in reasons[1]
    assert "its worker process died" in reasons[2]
    assert second.lost == []


def fleet_of(folder: Path, **settings: Any) -> Fleet:
    experiment = Experiment(**{**TINY, **settings})
    return Fleet(experiment, open_dataset(experiment), [], Store(folder))


def test_the_engine_is_the_one_that_the_experiment_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(self: ProcessEngine, fleet: Fleet, workers: int) -> None:
        self.__dict__["asked_for"] = workers

    monkeypatch.setattr(ProcessEngine, "__init__", note)
    monkeypatch.setattr(engines, "_cores", lambda: 4)
    cases: list[tuple[dict[str, Any], type, int | None]] = [
        ({"engine": "inline"}, InlineEngine, None),
        ({"engine": "processes", "workers": 1}, ProcessEngine, 1),
        ({"engine": "processes"}, ProcessEngine, 3),  # no more than devices in a round
        ({"engine": "auto"}, ProcessEngine, 3),
        ({"engine": "auto", "workers": 2}, ProcessEngine, 2),
        ({"engine": "auto", "workers": 1}, InlineEngine, None),
        ({"engine": "auto", "devices_per_round": 1}, InlineEngine, None),
        ({"engine": "auto", "workers": 1, "device_memory": "96MB"}, ProcessEngine, 1),  # to enforce it
        ({"engine": "auto", "accelerator": "cuda"}, InlineEngine, None),  # one GPU, one process at a time
    ]
    for settings, kind, workers in cases:
        engine = start_engine(fleet_of(tmp_path, **settings))
        assert type(engine) is kind, settings
        assert getattr(engine, "asked_for", None) == workers, settings
