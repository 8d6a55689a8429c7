"""A device that does not fit is refused before training. A formula stands for the measurement."""

from pathlib import Path

import pytest

import fedmef
from fedmef.costs.limit import check_device_memory
from fedmef.device.choice import missing_kernels
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment, make_experiment
from tests.costs.formula import SHAPE


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
    assert "needs 24.8 MB (measured: its whole process on the native backend" in text
    assert (missing_kernels() or "'fedmef plan' finds settings that fit") in text


@pytest.mark.usefixtures("measured")
def test_a_twentieth_of_the_limit_stays_free() -> None:
    check(24.8 / 0.95 + 0.01, batch_size=64)
    with pytest.raises(UserError, match="5% of the limit stay free"):
        check(24.8 / 0.95 - 0.01, batch_size=64)


@pytest.mark.usefixtures("measured")
def test_a_refused_run_writes_nothing(tmp_path: Path) -> None:
    experiment = make_experiment({"device_memory": "1MB", "engine": "inline"})
    with pytest.raises(UserError, match="device_memory"):
        fedmef.run(experiment, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
