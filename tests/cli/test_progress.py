"""Progress on a terminal: how far a run is, or many, and what the last round gave."""

import io
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import fedmef
from fedmef.cli.progress import ManyRunsProgress, RunProgress, Waiting
from fedmef.runs.directory import Run
from fedmef.runs.records import Failed
from fedmef.studies.many import Comparison, run_comparison
from tests.runs.written import NETWORK, a_round, a_state
from tests.small import small


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=160, color_system=None)


def screen(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def until(seen: Callable[[], bool]) -> None:
    """Wait for what a thread prints."""
    for _ in range(1000):
        if seen():
            return
        time.sleep(0.01)
    pytest.fail("it never came")


def half_done(path: Path, done: int, rounds: int) -> Run:
    """A run that was interrupted after so many rounds."""
    run = Run.create(path, small(rounds=rounds), NETWORK)
    for number in range(done):
        run.log(a_round(number))
    run.write_checkpoint(a_state(), done)
    return run


def test_a_run_shows_its_rounds_and_what_the_last_one_gave(tmp_path: Path) -> None:
    console = terminal()
    with RunProgress(console) as progress:
        fedmef.run(small(), tmp_path / "run", callbacks=[progress])
    *_, bar, status, _show_cursor = screen(console).splitlines()
    assert "fedmef on digits" in bar
    assert "2/2" in bar
    for part in ("loss ", "accuracy ", "active weights ", "down ", "up "):
        assert part in status


def test_a_resumed_run_counts_what_was_done_and_sent_before(tmp_path: Path) -> None:
    console = terminal()
    with RunProgress(console) as progress:
        progress.run_begins(half_done(tmp_path / "run", done=2, rounds=5))
        progress.round_done(a_round(2))
    *_, bar, status, _show_cursor = screen(console).splitlines()
    assert "3/5" in bar
    assert "down 900 B, up 300 B" in status  # 300 and 100 in each round


def test_the_line_names_what_is_unusual(tmp_path: Path) -> None:
    console = terminal()
    unusual = a_round(
        0,
        train_loss=None,
        epsilon=1.5,
        lost=[Failed(device=1, reason="dropped out")],
        adjusted=True,
        exchanged_weights=1234,
    )
    with RunProgress(console) as progress:
        progress.run_begins(half_done(tmp_path / "run", done=1, rounds=2))
        progress.round_done(unusual)
    status = screen(console).splitlines()[-2]
    for part in ("loss is not finite", "ε 1.50", "1 update lost", "adjusted 1,234 weights"):
        assert part in status


def test_a_comparison_shows_all_its_runs(tmp_path: Path) -> None:
    comparison = Comparison(small(), ("fedavg", "fedmef"), (0,), (0.9,))
    rounds = {name: (0, experiment.rounds) for name, experiment in comparison.named_experiments().items()}
    console = terminal()
    with ManyRunsProgress(rounds, console) as progress:
        run_comparison(comparison, tmp_path, callbacks=[progress])
    *_, overall, current, status, _show_cursor = screen(console).splitlines()
    assert "run 2 of 2" in overall
    assert "4/4" in overall
    assert "fedmef-sparsity0.9-seed0" in current
    assert "2/2" in current
    assert "accuracy" in status


def test_the_progress_of_resumed_runs_counts_what_is_left_to_do(tmp_path: Path) -> None:
    first, second = half_done(tmp_path / "first", 1, 3), half_done(tmp_path / "second", 2, 4)
    console = terminal()
    with ManyRunsProgress({"first": (1, 3), "second": (2, 4)}, console) as progress:
        progress.run_begins(first)
        progress.round_done(a_round(1))
        progress.round_done(a_round(2))
        progress.run_begins(second)
        progress.round_done(a_round(2))
    *_, overall, current, _status, _show_cursor = screen(console).splitlines()
    assert "run 2 of 2" in overall
    assert "3/4" in overall  # 2 rounds of the first and 2 of the second were left
    assert "3/4" in current  # 2 of its 4 were done before


def test_what_is_waited_for_is_shown_until_it_is_over() -> None:
    console = terminal()
    waiting = Waiting(console)
    waiting.tell("measuring what a device needs")
    waiting.stop()
    assert "measuring what a device needs …" in screen(console)


def test_anywhere_else_what_takes_long_is_a_line_now_and_then() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=20)
    waiting = Waiting(console, every=0.02)
    waiting.tell("measuring what a device needs")
    until(lambda: screen(console).count("\n") >= 2)
    waiting.tell("round 3 of 9")
    until(lambda: "round 3" in screen(console))
    waiting.stop()
    first, *_, last = screen(console).splitlines()
    assert first == "fedmef: measuring what a device needs (0 s)"
    assert last.startswith("fedmef: round 3 of 9 (")


def test_anywhere_else_a_run_says_its_rounds(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with RunProgress(console, every=0.02) as progress:
        progress.run_begins(half_done(tmp_path / "run", done=2, rounds=5))
        until(lambda: "fedmef on digits: 2 of 5 rounds" in screen(console))
        progress.round_done(a_round(2))
        until(lambda: "3 of 5 rounds, loss " in screen(console))


def test_anywhere_else_what_is_done_soon_is_silent(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    run = half_done(tmp_path / "run", 1, 2)
    with RunProgress(console) as alone, ManyRunsProgress({"run": (1, 2)}, console) as many:
        alone.tell("opening data")
        for progress in (alone, many):
            progress.run_begins(run)
            progress.round_done(a_round(1))
    assert screen(console) == ""


def test_a_comparison_with_nothing_to_do_shows_nothing() -> None:
    console = terminal()
    with ManyRunsProgress({}, console):
        pass
    assert screen(console) == ""
