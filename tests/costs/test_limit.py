"""A device that does not fit is refused before training. A formula stands for the measurement."""

from pathlib import Path

import pytest

import fedmef
from fedmef.costs import limit
from fedmef.costs.limit import check_device_memory, ignored_settings, needed_memory
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment, make_experiment
from tests.costs.formula import SHAPE, formula
from tests.small import small


def check(megabytes: float, **settings: object) -> list[str]:
    """What a person is told while it is measured."""
    told: list[str] = []
    experiment = make_experiment({"device_memory": f"{megabytes}MB", **settings})
    check_device_memory(experiment, SHAPE, 10, told.append)
    return told


def test_what_fits_is_measured_once(measured: list[Experiment]) -> None:
    assert check(100, batch_size=64) == ["measuring what a device needs"]
    assert len(measured) == 1


def test_without_a_limit_nothing_is_measured(measured: list[Experiment]) -> None:
    check_device_memory(Experiment(), SHAPE, 10, pytest.fail)
    assert measured == []


@pytest.mark.usefixtures("measured")
def test_what_does_not_fit_is_refused_with_what_it_needs_and_where_to_look() -> None:
    # 10 + 20 · 0.1 + 64 · (0.1 + 0.1) = 24.8 MB
    with pytest.raises(UserError) as refused:
        check(20, batch_size=64)
    text = str(refused.value)
    assert "device_memory = 20.0 MB" in text
    assert "needs 24.8 MB" in text
    assert "'fedmef plan' finds settings that fit" in text


@pytest.mark.usefixtures("measured")
def test_a_twentieth_of_the_limit_stays_free() -> None:
    check(24.8 / 0.95 + 0.01, batch_size=64)
    with pytest.raises(UserError, match="5% of the limit stay free"):
        check(24.8 / 0.95 - 0.01, batch_size=64)


def test_where_and_with_which_limit_it_runs_changes_no_measurement(measured: list[Experiment]) -> None:
    for changes in ({"device_memory": "1GB"}, {"data_dir": "/nowhere"}, {"accelerator": "cuda"}):
        assert needed_memory(make_experiment(changes), SHAPE, 10) == formula(Experiment(), SHAPE, 10)
    assert measured == [Experiment()] * 3


def test_the_same_configuration_is_measured_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Experiment] = []

    def measure(experiment: Experiment, shape: object, classes: int) -> int:
        asked.append(experiment)
        return 1

    monkeypatch.setattr(limit, "measure_device_memory", measure)
    limit._once.cache_clear()
    for _ in range(2):
        needed_memory(small(width=3), SHAPE, 10)
    limit._once.cache_clear()
    assert asked == [small(width=3)]


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


@pytest.mark.usefixtures("measured")
def test_a_refused_run_writes_nothing(tmp_path: Path) -> None:
    experiment = make_experiment({"device_memory": "1MB", "engine": "inline"})
    with pytest.raises(UserError, match="device_memory"):
        fedmef.run(experiment, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
