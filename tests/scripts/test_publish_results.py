"""Published runs: what was run and measured, without models and without this machine's settings."""

import sys
from pathlib import Path

import pytest

from fedmef.errors import UserError
from fedmef.runs.directory import read_finished
from scripts import publish_results
from tests.small import small, write_run


def publish(monkeypatch: pytest.MonkeyPatch, *arguments: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["publish_results.py", *map(str, arguments)])
    publish_results.main()


def test_a_published_run_can_be_read_and_names_no_folder_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "runs" / "a", small(workers=3, data_dir=str(tmp_path)), [0.25, 0.5])
    publish(monkeypatch, tmp_path / "runs", tmp_path / "out")
    assert capsys.readouterr().out == f"1 runs in {tmp_path / 'out'}\n"
    published = tmp_path / "out" / "a"
    assert sorted(file.name for file in published.iterdir()) == [
        "config.toml",
        "metrics.jsonl",
        "summary.json",
    ]
    again = read_finished(published)
    assert (again.summary, again.rounds) == (run.summary, run.rounds)
    assert (again.experiment.workers, again.experiment.data_dir) == (None, None)
    assert again.experiment.width == run.experiment.width


def test_a_damaged_run_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "runs" / "a", small(), [0.5])
    (run.path / "metrics.jsonl").write_text("{}")
    with pytest.raises(UserError, match="is damaged"):
        publish(monkeypatch, tmp_path / "runs", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_directory_without_a_finished_run_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        publish(monkeypatch, tmp_path, tmp_path / "out")
    assert f"there is no finished run in {tmp_path}" in capsys.readouterr().err
