"""Our estimates beside the paper's printed digits: what agrees must go on agreeing, what does not is said."""

import pytest

from fedmef.studies.paper.paper_costs import PaperCell, PaperTable, paper_tables


@pytest.fixture(scope="module")
def tables() -> dict[str, PaperTable]:
    return {table.quantity: table for table in paper_tables()}


def cell(table: PaperTable, row: str) -> PaperCell:
    return next(cell for cell in table.cells if cell.row == row)


@pytest.mark.parametrize(("sparsity", "digits"), [("0.95", "0.083"), ("0.9", "0.133"), ("0.8", "0.232")])
def test_feddsts_exchange_has_the_papers_digits_with_a_bitmap_and_not_with_its_rule(
    tables: dict[str, PaperTable], sparsity: str, digits: str
) -> None:
    found = cell(tables["data exchange"], f"feddst {sparsity}, x")
    bitmap, _, rule = found.estimated
    assert found.printed(bitmap) == found.printed(found.paper) == digits
    assert not found.agrees(rule)


def test_fedavgs_flops_have_the_papers_digits_with_the_cifar_stem_only(tables: dict[str, PaperTable]) -> None:
    found = cell(tables["FLOPs"], "fedavg")
    assert [found.agrees(value) for value in found.estimated] == [True, True, True, False]
    assert found.printed(found.estimated[0]) == "8.33e12"
    assert found.estimated[0] == 3 * 555_422_720 * 5000


def test_fedavgs_exchange_is_within_a_sixth_of_a_percent(tables: dict[str, PaperTable]) -> None:
    found = cell(tables["data exchange"], "fedavg, MB")
    assert found.estimated[0] == pytest.approx(89.391696)
    assert not found.agrees(found.estimated[0])


def test_resnet18s_memory_fits_the_imagenet_stem(tables: dict[str, PaperTable]) -> None:
    table = tables["memory of resnet18"]
    assert table.largest_difference(0) < 0.0032
    assert table.largest_difference(1) < 0.0015  # with BatchNorm's running statistics
    assert all(table.largest_difference(other) > 0.04 for other in range(2, len(table.readings)))
    assert cell(table, "fedavg, MB").estimated[1] == pytest.approx(120.73, abs=0.005)
    assert not any(found.agrees(value) for found in table.cells for value in found.estimated)


def test_no_reading_comes_near_mobilenets_memory(tables: dict[str, PaperTable]) -> None:
    table = tables["memory of mobilenet_v2"]
    assert all(table.largest_difference(reading) > 0.4 for reading in range(len(table.readings)))


def test_every_cost_of_the_paper_is_there(tables: dict[str, PaperTable]) -> None:
    assert [len(table.cells) for table in tables.values()] == [10, 10, 3, 3]
    for table in tables.values():
        assert all(len(found.estimated) == len(table.readings) for found in table.cells)
