from collections.abc import Iterator
from typing import Any

import pytest

from fedmef.costs import device_process
from fedmef.costs.device_process import ProcessCost
from fedmef.costs.tensors import TensorCost, measure_tensors
from fedmef.experiment.settings import Experiment
from fedmef.report import figures
from fedmef.report import groups as groups_module
from fedmef.report.groups import Group
from tests.costs.formula import process
from tests.report.reading import groups_in
from tests.small import small, write_run


@pytest.fixture(scope="session", autouse=True)
def _processes() -> Iterator[None]:
    """300 MB for a device on PyTorch, 40 MB without; nothing is started."""

    def measure(experiment: Experiment, shape: object, classes: int) -> ProcessCost:
        dense = experiment.method == "fedavg"
        return process(300e6, "torch") if dense else process(40e6)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_process, "_once", measure)
        yield


@pytest.fixture(scope="session", autouse=True)
def _tensors() -> Iterator[None]:
    """Each experiment's tensors are measured once, not once a test."""
    known: dict[str, TensorCost] = {}

    def measured(experiment: Experiment, *rest: Any, **own: Any) -> TensorCost:
        if own:  # a network that was read from a run
            return measure_tensors(experiment, *rest, **own)
        key = f"{experiment.model_dump_json(exclude={'seed'})} {rest}"
        if key not in known:
            known[key] = measure_tensors(experiment, *rest)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups_module, "measure_tensors", measured)
        yield


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what a page says: to render its figures takes most of a report's time."""
    monkeypatch.setattr(figures, "_rendered", lambda figure, form: b"<svg></svg>")


@pytest.fixture(scope="session")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    """FedAvg of 3 rounds, one of them not evaluated, and FedMef with an adjustment in the second."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "a", small("fedavg"), [0.5, None, 0.75])
    layers = {"conv": (1, 4)}
    write_run(folder / "b", small("fedmef"), [0.25, 0.5, 0.5], {1: (0.5, 0.25)}, layers)
    return groups_in(folder)
