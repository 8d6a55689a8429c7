import pytest

from fedmef.report.groups import Group
from tests.report.reading import groups_in
from tests.small import small, write_run


@pytest.fixture(scope="session")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    """FedAvg of 3 rounds, one of them not evaluated, and FedMef with an adjustment in the second."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "a", small("fedavg"), [0.5, None, 0.75])
    layers = {"conv": (1, 4)}
    write_run(folder / "b", small("fedmef"), [0.25, 0.5, 0.5], {1: (0.5, 0.25)}, layers)
    return groups_in(folder)
