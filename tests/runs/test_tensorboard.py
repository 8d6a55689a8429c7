import sys
import warnings
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fedmef
from fedmef.cli import app as cli
from fedmef.errors import Interrupted, UserError
from fedmef.experiment.settings import Experiment
from fedmef.runs import tensorboard as event_files
from fedmef.runs.directory import TENSORBOARD, Run
from fedmef.runs.tensorboard import EventFiles
from tests.federation.small import TINY, interrupted_after
from tests.runs.written import NETWORK, a_round, a_state, a_summary


def events_in(run: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = EventAccumulator(str(run / TENSORBOARD))
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}


def run_of(path: Path, *accuracies: float) -> Run:
    run = Run.create(path, Experiment(rounds=len(accuracies)), NETWORK)
    for number, accuracy in enumerate(accuracies):
        run.log(a_round(number, test_accuracy=accuracy))
    run.finish(a_state(), a_summary(rounds=len(accuracies)))
    return run


def test_a_resumed_run_has_every_round_once(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", 0.25, 0.5, 0.75)
    records = run.rounds
    metrics = run.path / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    before_the_crash, after_it = EventFiles(), EventFiles()
    for callback, numbers in ((before_the_crash, (0, 1)), (after_it, (1, 2))):
        callback.run_begins(run)
        for number in numbers:
            metrics.write_text("".join(lines[: number + 1]))
            callback.round_done(records[number])
        callback.close()
    assert events_in(run.path)["test_accuracy"] == [(0, 0.25), (1, 0.5), (2, 0.75)]


def test_what_was_not_measured_in_a_round_is_not_there(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Experiment(rounds=2), NETWORK)
    run.log(a_round(0, test_accuracy=None))
    run.log(
        a_round(1, adjusted=True, accuracy_before_adjustment=0.75, accuracy_after_adjustment=0.5, epsilon=2.0)
    )
    EventFiles().write_finished(run)
    events = events_in(run.path)
    assert events["test_accuracy"] == [(1, 0.5)]
    assert events["drop"] == [(1, 0.25)]
    assert events["epsilon"] == [(1, 2.0)]
    assert events["bytes_down"] == [(0, 300.0), (1, 300.0)]
    assert "dropped_magnitude" not in events


def test_overwriting_a_run_removes_its_event_files(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", 0.25)
    EventFiles().write_finished(run)
    assert events_in(run.path)["test_accuracy"] == [(0, 0.25)]
    Run.create(run.path, Experiment(), NETWORK, overwrite=True)
    assert not (run.path / TENSORBOARD).exists()


def test_a_run_is_written_while_it_runs_and_resumes_without_a_gap(tmp_path: Path) -> None:
    experiment = Experiment(**{**TINY, "rounds": 3})
    with pytest.raises(Interrupted):
        fedmef.run(experiment, tmp_path / "run", callbacks=[EventFiles(), interrupted_after(2)])
    assert [step for step, _ in events_in(tmp_path / "run")["train_loss"]] == [0, 1]
    run = fedmef.resume(tmp_path / "run", callbacks=[EventFiles()])
    written = events_in(run.path)
    assert written.keys() == {name for record in run.rounds for name in record.scalars()}
    for name, points in written.items():
        known = [(record.round, record.scalars()[name]) for record in run.rounds if name in record.scalars()]
        assert [step for step, _ in points] == [step for step, _ in known]
        assert [value for _, value in points] == pytest.approx([value for _, value in known])


def invoke(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str, str]:
    settings = {name: value for name, value in TINY.items() if name not in ("rounds", "adjust_until")}
    options = [part for name, value in settings.items() for part in (option(name), str(value))]
    monkeypatch.setattr(sys, "argv", ["fedmef", *arguments, *options, "--rounds", "2", "--tensorboard"])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # set by main, and put back
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def test_the_command_line_writes_event_files_of_every_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert invoke(["run", "--out", str(one)], capsys, monkeypatch)[0] == 0
    written = events_in(one)
    assert [step for step, _ in written["train_loss"]] == [0, 1]
    expected = [record.test_accuracy for record in Run.open(one).rounds]
    assert [value for _, value in written["test_accuracy"]] == pytest.approx(expected)

    many = ["compare", "--methods", "fedavg,fedmef", "--out", str(two), "--no-report"]
    assert invoke(many, capsys, monkeypatch)[0] == 0
    for name in ("fedavg-seed0", "fedmef-sparsity0.9-seed0"):
        assert [step for step, _ in events_in(two / name)["bytes_up"]] == [0, 1]


def test_a_missing_package_is_named_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_files, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install"):
        event_files.check_tensorboard()
    for command in ("run", "compare"):
        code, printed, errors = invoke([command, "--out", str(tmp_path / "run")], capsys, monkeypatch)
        assert (code, printed) == (2, "")
        assert "pip install 'fedmef[tensorboard]'" in errors
    assert list(tmp_path.iterdir()) == []
