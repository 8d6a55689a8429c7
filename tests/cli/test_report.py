import json
import os
from pathlib import Path

import pytest

from fedmef.runs.directory import Run
from tests.cli.test_app import invoke
from tests.report.finished_runs import experiment, write_run

Capture = pytest.CaptureFixture[str]


def test_a_report_goes_beside_its_runs(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "a", experiment(), [0.5])
    code, printed, errors = invoke(["report", str(run.path)], capsys, monkeypatch)
    assert (code, errors) == (0, "")
    page = tmp_path / "report" / "report.html"
    assert str(page) in printed
    assert page.is_file()

    out = tmp_path / "elsewhere"
    code, printed, _ = invoke(["report", str(tmp_path), "--out", str(out), "--json"], capsys, monkeypatch)
    assert code == 0
    assert json.loads(printed) == {"report": str(out / "report.html"), "runs": 1, "left_out": []}


def test_an_unfinished_and_a_damaged_run_are_a_line_each_and_exit_code_one(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a", experiment(seed=0), [0.5])
    damaged = write_run(tmp_path / "b", experiment(seed=1), [0.5])
    (damaged.path / "summary.json").write_text('{"test_acc')
    Run.create(tmp_path / "c", experiment(seed=2))
    code, printed, errors = invoke(["report", str(tmp_path)], capsys, monkeypatch)
    assert code == 1
    assert "report.html" in printed
    first, second, last = errors.splitlines()
    assert first.startswith(f"fedmef: left out: {damaged.path}")
    assert "is damaged" in first
    assert second.startswith(f"fedmef: left out: {tmp_path / 'c'}")
    assert "is not finished" in second
    assert last == "fedmef: 2 of 3 runs were left out; the report has the others"


def test_no_usable_run_is_exit_code_two_and_writes_nothing(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run.create(tmp_path / "c", experiment())
    code, printed, errors = invoke(["report", str(tmp_path)], capsys, monkeypatch)
    assert (code, printed) == (2, "")
    assert "nothing to report" in errors
    assert not (tmp_path / "report").exists()


def test_runs_of_different_networks_are_exit_code_two(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a", experiment("fedavg"), [0.5])
    write_run(tmp_path / "b", experiment("fedmef", width=8), [0.5])
    code, _, errors = invoke(["report", str(tmp_path)], capsys, monkeypatch)
    assert code == 2
    assert "width = 4 in the one, 8 in the other" in errors


def test_a_report_never_goes_into_a_run(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = (
        write_run(tmp_path / name, experiment(seed=place), [0.5]) for place, name in enumerate("ab")
    )
    code, _, errors = invoke(["report", str(run.path), "--out", str(other.path)], capsys, monkeypatch)
    assert code == 2
    assert "is a run itself" in errors
    assert not (other.path / "figures").exists()


def test_a_directory_above_directories_of_runs_names_one(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "runs" / "compare" / "a", experiment(), [0.5])
    code, _, errors = invoke(["report", str(tmp_path / "runs")], capsys, monkeypatch)
    assert code == 2
    assert f"{tmp_path / 'runs' / 'compare'} is a directory of runs: name it" in errors


def test_a_path_that_is_no_text_is_reported(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff"))
    write_run(folder, experiment(), [0.5])
    code, _, _ = invoke(["report", str(folder), "--json"], capsys, monkeypatch)
    assert code == 0
    assert "/a?/config.toml" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a", experiment(), [0.5])
    (tmp_path / "file").write_text("")
    code, _, errors = invoke(["report", str(tmp_path), "--out", str(tmp_path / "file")], capsys, monkeypatch)
    assert code == 2
    assert "cannot write the report" in errors
