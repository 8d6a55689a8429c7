from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedmef.errors import UserError
from fedmef.federation import api as federation
from fedmef.runs import tensorboard as event_files
from fedmef.runs.directory import TENSORBOARD, Run
from fedmef.runs.tensorboard import EventFiles, scalars
from tests.cli.test_app import QUICK, invoke
from tests.report.finished_runs import experiment, write_run


def events_in(run: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(run / TENSORBOARD))
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}


def test_a_rounds_scalars_leave_out_what_was_not_measured(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", experiment(), [None, 0.5], {1: (0.75, 0.5)})
    first, second = run.metrics
    assert scalars(first) == {"train_loss": 1.0, "learning_rate": 0.1, "bytes/down": 300, "bytes/up": 100}
    assert scalars(second)["test_accuracy"] == 0.5
    assert scalars(second)["drop"] == 0.25


def test_a_resumed_run_has_every_round_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", experiment(), [0.25, 0.5, 0.75])
    records = run.metrics
    metrics = run.path / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    before_the_crash, after_it = EventFiles(), EventFiles()
    before_the_crash.begin(run.path)
    for number in (0, 1):
        metrics.write_text("".join(lines[: number + 1]))
        before_the_crash.round_done(records[number])
    before_the_crash.close()
    after_it.begin(run.path)
    for number in (1, 2):
        metrics.write_text("".join(lines[: number + 1]))
        after_it.round_done(records[number])
    after_it.close()
    assert events_in(run.path)["test_accuracy"] == [(0, 0.25), (1, 0.5), (2, 0.75)]


def test_overwriting_a_run_removes_its_event_files(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", experiment(), [0.25])
    EventFiles().write_finished(run)
    assert events_in(run.path)["test_accuracy"] == [(0, 0.25)]
    Run.create(run.path, experiment(), overwrite=True)
    assert not (run.path / TENSORBOARD).exists()


def test_run_and_compare_write_event_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*QUICK, "--rounds", "2", "--tensorboard"]
    one = tmp_path / "one"
    assert invoke(["run", *settings, "--out", str(one)], capsys, monkeypatch)[0] == 0
    written = events_in(one)
    assert [step for step, _ in written["train_loss"]] == [0, 1]
    expected = [record["test_accuracy"] for record in Run.open(one).metrics]
    assert [value for _, value in written["test_accuracy"]] == pytest.approx(expected)

    many = ["compare", *settings, "--methods", "fedavg,fedmef", "--out", str(tmp_path / "two"), "--no-report"]
    assert invoke(many, capsys, monkeypatch)[0] == 0
    for name in ("fedavg-seed0", "fedmef-sparsity0.9-seed0"):
        assert [step for step, _ in events_in(tmp_path / "two" / name)["bytes/up"]] == [0, 1]


def test_a_missing_package_is_named_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_files, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install"):
        event_files.check_tensorboard()
    monkeypatch.setattr(federation, "run", lambda *_: pytest.fail("training began"))
    for command in ("run", "compare"):
        arguments = [command, *QUICK, "--tensorboard", "--out", str(tmp_path / "run")]
        code, printed, errors = invoke(arguments, capsys, monkeypatch)
        assert (code, printed) == (2, "")
        assert "pip install fedmef[tensorboard]" in errors
    assert list(tmp_path.iterdir()) == []
