"""A run can be killed at any moment, also while it writes: it always ends in the same bits."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines.scratch import remove_abandoned
from tests.federation.small import digest

SETTINGS: dict[str, Any] = {
    "dataset": "synthetic",
    "synthetic_size": 8,
    "synthetic_train": 160,
    "synthetic_test": 40,
    "width": 4,
    "devices": 6,
    "devices_per_round": 3,
    "rounds": 14,
    "local_epochs": 1,
    "adjust_every": 2,
    "learning_rate": 0.1,
    "seed": 5,
}


def kill_and_resume(
    folder: Path, settings: dict[str, Any], kills: int, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    scratch = folder / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.federation.killing", str(folder), json.dumps(settings), str(kills)],
        env={**os.environ, "TMPDIR": str(scratch)},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    printed, _ = process.communicate(timeout=900)
    assert process.returncode == 0
    # What nobody could remove, a process that was killed before it had workers, the next process does.
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    for _ in range(100):  # workers whose parent was killed end when they notice
        remove_abandoned()
        if not list(scratch.glob("fedmef-*/lock")):
            break
        time.sleep(0.1)
    assert list(scratch.glob("fedmef-*/lock")) == []
    result: dict[str, Any] = json.loads(printed)
    return result


@pytest.mark.parametrize(
    ("engine", "kills"),
    [
        pytest.param("inline", 3),
        pytest.param("inline", 20, marks=pytest.mark.slow),
        pytest.param("processes", 20, marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_at_random_moments_ends_in_the_bits_of_one_that_was_not(
    tmp_path: Path, engine: str, kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SETTINGS, "engine": engine, "workers": 1}
    whole = fedmef.run(Experiment(**{**SETTINGS, "engine": "inline"}), tmp_path / "whole")
    result = kill_and_resume(tmp_path, settings, kills, monkeypatch)
    assert result["kills"] >= kills
    assert set(result["digests"]) == {digest(whole.path)}
