"""Experiments that run in seconds, and callbacks that act in the middle of them. Imports no PyTorch."""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedmef.runs.callbacks import Callback
from fedmef.runs.directory import Run
from fedmef.runs.records import Round

# On the digits.
SMALL: dict[str, Any] = {
    "width": 8,
    "devices": 6,
    "devices_per_round": 3,
    "local_epochs": 1,
    "batch_size": 64,
    "engine": "inline",
}
FIVE_ADJUSTMENTS: dict[str, Any] = {**SMALL, "rounds": 7, "adjust_every": 1, "adjust_until": 6}

# Faster still.
TINY: dict[str, Any] = {
    "dataset": "synthetic",
    "synthetic_size": 8,
    "synthetic_train": 160,
    "synthetic_test": 40,
    "width": 4,
    "devices": 6,
    "devices_per_round": 3,
    "rounds": 1,
    "local_epochs": 1,
    "batch_size": 64,
    "learning_rate": 0.1,
    "adjust_every": 1,
    "adjust_until": 9,
    "engine": "inline",
}


def digest(path: Path) -> str:
    """What tells a final model from others, to the last bit."""
    return hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()


def workers() -> list[int]:
    """The worker processes that this process has now."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            command = (status.parent / "cmdline").read_bytes()
            if parent == os.getpid() and (b"fedmef.device" in command or b"spawn_main" in command):
                found.append(int(status.parent.name))
    return sorted(found)


class AfterRounds(Callback):
    """Does something after every round, with its record."""

    def __init__(self, act: Callable[[Round], object]) -> None:
        self._act = act

    def round_done(self, record: Round, model: object) -> None:
        self._act(record)


def interrupted_after(number: int) -> AfterRounds:
    """Ctrl-C when so many rounds are done."""

    def interrupt(record: Round) -> None:
        if record.number == number:
            raise KeyboardInterrupt

    return AfterRounds(interrupt)


# What depends on the clock or the engine, in the record of a round.
MEASURED = {"seconds", "device_reports"}


def steady(run: Run) -> list[dict[str, Any]]:
    """A run's records without what differs from run to run."""
    return [record.model_dump(exclude=MEASURED) for record in run.rounds]
