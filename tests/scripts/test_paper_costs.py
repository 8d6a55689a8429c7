"""Our estimates next to the paper's printed digits: what agrees must stay so, what does not is said."""

import json
import sys

import pytest

from scripts import paper_costs
from scripts.paper_costs import PaperCell, PaperTable, paper_tables


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


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["paper_costs.py", *arguments])
    paper_costs.main()
    return capsys.readouterr().out


def test_json_has_every_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, flops, *_ = json.loads(printed(capsys, monkeypatch, "--json"))["tables"]
    cells = {cell["row"]: cell for cell in exchange["cells"]}
    bitmap = [
        cells[f"feddst {sparsity}, x"]["estimated"][0]["printed"] for sparsity in ("0.95", "0.9", "0.8")
    ]
    assert bitmap == ["0.083", "0.133", "0.232"]
    assert flops["cells"][0]["row"] == "fedavg"
    assert flops["cells"][0]["estimated"][0] == {"value": 8.3313408e12, "printed": "8.33e12", "agrees": True}


def test_the_text_marks_what_agrees_and_says_what_does_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed(capsys, monkeypatch)
    assert "0.083=" in text
    assert "A: bitmap at every density; the largest ζ of the schedule, 0.399 in round 10: " in text
    assert "No reading tried agrees." in text
