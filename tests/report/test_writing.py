from pathlib import Path

import pytest

from fedmef.errors import UserError
from fedmef.report import writing
from fedmef.report.reading import read_runs
from fedmef.report.writing import write_report
from tests.small import small, write_run

pytestmark = pytest.mark.usefixtures("no_figures")


def test_figures_of_an_earlier_report_go(tmp_path: Path) -> None:
    adjusting = write_run(tmp_path / "a", small("fedmef"), [0.5, 0.5], {1: (0.5, 0.25)})
    dense = write_run(tmp_path / "b", small("fedavg"), [0.5, 0.5])
    out = tmp_path / "report"
    write_report(read_runs([adjusting.path, dense.path]), out)
    assert (out / "figures" / "adjustments.pdf").is_file()
    write_report(read_runs([dense.path]), out)
    assert not (out / "figures" / "adjustments.pdf").exists()
    assert sorted(file.name for file in (out / "figures").iterdir()) == [
        f"{name}.{ending}" for name in ("accuracy", "costs", "memory", "traffic") for ending in ("pdf", "png")
    ]


def test_a_place_is_checked_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "a", small(), [0.5])
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(writing, "group_runs", lambda *_: pytest.fail("measured"))
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=r"file is not a folder; choose another --out"):
            write_report(read_runs([run.path]), place)


def test_a_report_says_what_it_measures(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", small("fedavg"), [0.5])
    told: list[str] = []
    write_report(read_runs([run.path]), tmp_path / "report", told.append)
    assert told == ["measuring a device of a, and PyTorch's dense one", "drawing"]
