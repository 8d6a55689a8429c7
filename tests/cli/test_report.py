"""`fedmef report` as a user meets it."""

import json
import os
from pathlib import Path

from fedmef.runs.directory import Run
from tests.cli.invoking import Invoke, check_mistake
from tests.runs.written import NETWORK
from tests.small import small, write_run


def test_a_report_goes_next_to_its_runs(tmp_path: Path, invoke: Invoke) -> None:
    run = write_run(tmp_path / "a", small(), [0.5])
    code, printed, errors = invoke("report", str(run.path))
    assert (code, errors) == (0, "")
    page = tmp_path / "report" / "report.html"
    assert str(page) in printed
    assert page.is_file()

    out = tmp_path / "elsewhere"
    code, printed, _ = invoke("report", str(tmp_path), "--out", str(out), "--json")
    assert code == 0
    assert json.loads(printed) == {"report": str(out / "report.html"), "runs": 1, "left_out": []}


def test_an_unfinished_and_a_damaged_run_are_a_line_each_and_exit_code_one(
    tmp_path: Path, invoke: Invoke
) -> None:
    write_run(tmp_path / "a", small(seed=0), [0.5])
    damaged = write_run(tmp_path / "b", small(seed=1), [0.5])
    (damaged.path / "summary.json").write_text('{"test_acc')
    Run.create(tmp_path / "c", small(seed=2), NETWORK)
    code, printed, errors = invoke("report", str(tmp_path))
    assert code == 1
    assert "report.html" in printed
    first, second, last = errors.splitlines()
    assert first.startswith(f"fedmef: left out: {damaged.path}")
    assert "is damaged" in first
    assert second.startswith(f"fedmef: left out: {tmp_path / 'c'}")
    assert "is not finished" in second
    assert last == "fedmef: 2 of 3 runs were left out; the report has the others"


def test_no_usable_run_is_exit_code_two_and_writes_nothing(tmp_path: Path, invoke: Invoke) -> None:
    Run.create(tmp_path / "c", small(), NETWORK)
    code, printed, errors = invoke("report", str(tmp_path))
    assert (code, printed) == (2, "")
    assert "nothing to report" in errors
    assert not (tmp_path / "report").exists()


def test_runs_of_different_networks_are_exit_code_two(tmp_path: Path, invoke: Invoke) -> None:
    write_run(tmp_path / "a", small("fedavg"), [0.5])
    write_run(tmp_path / "b", small("fedmef", width=8), [0.5])
    check_mistake(invoke("report", str(tmp_path)), "width = 4 in the one, 8 in the other")


def test_a_report_never_goes_into_a_run(tmp_path: Path, invoke: Invoke) -> None:
    run, other = (write_run(tmp_path / name, small(seed=place), [0.5]) for place, name in enumerate("ab"))
    check_mistake(invoke("report", str(run.path), "--out", str(other.path)), "is a run itself")
    assert not (other.path / "figures").exists()


def test_a_directory_above_directories_of_runs_names_one(tmp_path: Path, invoke: Invoke) -> None:
    write_run(tmp_path / "runs" / "compare" / "a", small(), [0.5])
    code, _, errors = invoke("report", str(tmp_path / "runs"))
    assert code == 2
    assert f"{tmp_path / 'runs' / 'compare'} is a directory of runs: name it" in errors


def test_a_path_that_is_no_text_is_reported(tmp_path: Path, invoke: Invoke) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff"))
    write_run(folder, small(), [0.5])
    code, _, _ = invoke("report", str(folder), "--json")
    assert code == 0
    assert "/a\\udcff/config.toml" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, invoke: Invoke) -> None:
    write_run(tmp_path / "a", small(), [0.5])
    (tmp_path / "file").write_text("")
    ended = invoke("report", str(tmp_path), "--out", str(tmp_path / "file"))
    check_mistake(ended, "is not a folder; choose another --out")
