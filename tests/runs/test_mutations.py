"""Whatever is in a run's directory: a typed error or a result, soon, in bounded memory; no code is run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.mutations import CPU_SECONDS, SPRUNG

ACTIONS = {"report", "evaluate", "load", "resume"}


def check_mutations(folder: Path, first: int, count: int, *how: str) -> None:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.runs.mutations",
        str(folder),
        str(first),
        str(count),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([*command, *how], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    outcomes = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {outcome["action"] for outcome in outcomes} == ACTIONS
    assert len(outcomes) == count * len(ACTIONS)
    for outcome in outcomes:
        kind = outcome["error"].partition(":")[0]
        assert kind in ("works", "typed"), outcome
        assert outcome["error"].isprintable(), outcome
        assert outcome["seconds"] <= CPU_SECONDS, outcome
        assert not outcome["hung"], outcome
    assert sum(outcome["error"] != "works" for outcome in outcomes) > count  # they are not harmless
    assert not (folder / SPRUNG).exists()


def test_mutated_directories_give_typed_errors_soon_and_nothing_of_theirs_is_run(tmp_path: Path) -> None:
    check_mutations(tmp_path, 0, 30)


@pytest.mark.slow
def test_two_hundred_mutated_directories_are_reported_on_evaluated_loaded_and_resumed(tmp_path: Path) -> None:
    check_mutations(tmp_path, 0, 200, "draw")
