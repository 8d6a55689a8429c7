from pathlib import Path

import pytest

from fedmef.studies.paper.base import Case, Result
from fedmef.studies.paper.training_memory import KEPT, PEAK, memory_cells
from tests.small import small, write_run

CASE = Case("", {}, {})


@pytest.mark.slow
def test_memory_grows_with_the_batch_and_only_its_activations_do(tmp_path: Path) -> None:
    cells = [
        memory_cells(Result(CASE, [write_run(tmp_path / str(size), small(batch_size=size), [0.5])], 0))
        for size in (8, 16, 24)
    ]
    small_one, middle, large = (cell[KEPT] or 0.0 for cell in cells)
    assert large - middle == pytest.approx(middle - small_one, rel=0.01)
    assert 2 * small_one > middle > small_one
    assert all((cell[PEAK] or 0.0) > 0 for cell in cells)


def test_without_a_run_there_is_nothing_to_measure() -> None:
    assert memory_cells(Result(CASE, [], 1)) == {KEPT: None, PEAK: None}
