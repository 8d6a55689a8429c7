from pathlib import Path

import pytest

from fedmef.studies.paper.base import Case, Result
from fedmef.studies.paper.convergence import tabulate
from tests.small import small, write_run


def row_of(folder: Path, accuracies: list[float | None]) -> dict[str, object]:
    run = write_run(folder, small(), accuracies)
    (row,) = tabulate([Result(Case("fedmef", {"method": "fedmef"}, {}), [run], 0)])
    return {**row}


def test_the_accuracy_at_a_share_is_that_of_the_first_evaluation_from_then_on(tmp_path: Path) -> None:
    row = row_of(tmp_path, [0.2, None, 0.6, 0.5])
    assert row["% at 25% of rounds (ours)"] == pytest.approx(20)
    assert row["% at 50% of rounds (ours)"] == pytest.approx(60)  # round 2 of 4 was not evaluated
    assert row["% at 75% of rounds (ours)"] == pytest.approx(60)
    assert row["accuracy % (ours)"] == pytest.approx(50)


def test_the_largest_fall_is_from_one_evaluation_to_the_next(tmp_path: Path) -> None:
    falling = row_of(tmp_path / "a", [0.5, 0.4, None, 0.6, 0.35])
    rising = row_of(tmp_path / "b", [0.1, 0.2])
    assert falling["largest fall (ours)"] == pytest.approx(25)
    assert rising["largest fall (ours)"] == 0
