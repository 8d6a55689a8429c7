"""SIGINT and SIGTERM in the middle of a run or of a comparison: the round in hand is finished and kept."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.errors import Interrupted
from fedmef.experiment.settings import Experiment
from fedmef.runs.directory import Run
from fedmef.runs.records import Round
from fedmef.studies.many import Comparison, run_comparison
from tests.federation.small import AfterRounds, digest

TINY: dict[str, Any] = {
    "width": 4,
    "devices": 4,
    "devices_per_round": 2,
    "local_epochs": 1,
    "batch_size": 64,
    "rounds": 3,
    "engine": "inline",
}


def asking_after(number: int) -> AfterRounds:
    """Asks to stop when so many rounds of a run are done."""

    def ask(record: Round) -> None:
        if record.number == number:
            os.kill(os.getpid(), signal.SIGTERM)

    return AfterRounds(ask)


def test_the_round_in_hand_is_finished_and_the_run_says_how_to_resume(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="stopped after 1 of 3 rounds; 'fedmef run --resume") as stopped:
        fedmef.run(Experiment(**TINY), tmp_path / "run", callbacks=[asking_after(1)])
    assert stopped.value.signal_number == signal.SIGTERM
    assert len(Run.open(tmp_path / "run").finished_rounds()) == 1
    resumed = fedmef.resume(tmp_path / "run")
    whole = fedmef.run(Experiment(**TINY), tmp_path / "whole")
    assert digest(resumed.path) == digest(whole.path)


def test_a_comparison_stops_between_two_runs_too(tmp_path: Path) -> None:
    comparison = Comparison(Experiment(**TINY), ("fedavg", "fedmef"), (0,), (0.9,))
    with pytest.raises(Interrupted, match="with 1 of 2 runs finished; the same command continues it"):
        run_comparison(comparison, tmp_path, callbacks=[asking_after(3)])
    assert Run.open(tmp_path / "fedavg-seed0").finished
    assert not (tmp_path / "fedmef-sparsity0.9-seed0").exists()


def test_a_comparison_continues_with_longer_runs_of_the_same_schedule(tmp_path: Path) -> None:
    def of_rounds(rounds: int) -> Comparison:
        base = Experiment(**{**TINY, "rounds": rounds, "adjust_until": 1, "adjust_every": 1})
        return Comparison(base, ("fedmef",), (0,), (0.9,))

    run_comparison(of_rounds(2), tmp_path / "out")
    (longer,) = run_comparison(of_rounds(3), tmp_path / "out")
    (whole,) = run_comparison(of_rounds(3), tmp_path / "whole")
    assert digest(longer.path) == digest(whole.path)


@pytest.mark.parametrize("signals", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_command_line_ends_with_the_signals_exit_code_and_leaves_nothing(
    tmp_path: Path, signals: int
) -> None:
    out, scratch = tmp_path / "run", tmp_path / "scratch"
    scratch.mkdir()
    options = ["--width", "8", "--rounds", "500", "--engine", "processes", "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmef", "run", *options, "--out", str(out)],
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (out / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    for _ in range(signals):
        os.killpg(process.pid, signal.SIGTERM)  # the workers hear it too, and leave it to their parent
        time.sleep(0.05)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopping after this round" in errors
    assert f"fedmef run --resume {out}" in errors
    # The second may come after the round that the first let end.
    assert "stopped after" in errors or (signals == 2 and "stopped in round" in errors)
    assert "Traceback" not in errors
    records = Run.open(out).finished_rounds()
    assert records
    assert all(record.lost == [] for record in records)
    assert list(scratch.glob("fedmef-*")) == []  # PyTorch makes a folder of its own
