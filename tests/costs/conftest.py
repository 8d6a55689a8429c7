import pytest

from fedmef.costs import device_process
from fedmef.costs.device_process import ProcessCost
from fedmef.experiment.settings import Experiment
from tests.costs.formula import formula


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """What was measured; the formula says how much it needs."""
    asked: list[Experiment] = []

    def measure(experiment: Experiment, shape: object, classes: int) -> ProcessCost:
        asked.append(experiment)
        return formula(experiment, shape, classes)

    monkeypatch.setattr(device_process, "_once", measure)
    return asked
