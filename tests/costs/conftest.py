import pytest

from fedmef.costs import limit
from fedmef.experiment.settings import Experiment
from tests.costs.formula import formula


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Experiment]:
    """What was measured; the formula says how much it needs."""
    asked: list[Experiment] = []

    def measure(experiment: Experiment, shape: object, classes: int) -> int:
        asked.append(experiment)
        return formula(experiment, shape, classes)

    monkeypatch.setattr(limit, "_once", measure)
    return asked
