"""Kills runs at random moments and resumes them; a program of its own, so that it can fork before threads.

It imports PyTorch, which takes seconds, once for all its children, and uses nothing of it: that would start
threads, and a fork does not take them along.

`python -m tests.federation.killing FOLDER SETTINGS KILLS` prints how many kills there were and the digests of
the final models. A kill hits a moment of the clock, or a moment within the writing of a file.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fedmef
import fedmef.models.initial
import fedmef.nn.backend
from fedmef.experiment.settings import make_experiment
from fedmef.runs.directory import Run
from tests.federation.small import digest


def run_or_resume(path: Path, settings: dict[str, Any]) -> None:
    if (path / "config.toml").is_file():
        fedmef.resume(path)
    else:
        fedmef.run(make_experiment(settings), path)


def die_within_a_write(calls: int) -> None:
    """SIGKILL before, in the middle of or after the rename of a file, so many steps of writing from now."""
    left = [calls]

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        return step

    os.fsync = counted(os.fsync)
    Path.replace = counted(Path.replace)  # type: ignore[method-assign]


def killed(path: Path, settings: dict[str, Any], chance: random.Random, seconds: float) -> bool:
    """Continue a run in a process that is killed at some moment; False when it came to its end before."""
    process = os.fork()
    if process == 0:
        os.setpgid(0, 0)
        if chance.random() < 0.5:
            die_within_a_write(chance.randint(1, 24))
        try:
            run_or_resume(path, settings)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    chance.random()
    started, moment = time.monotonic(), chance.uniform(0.0, seconds)
    rounds = rounds_done(path)
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            assert os.WIFSIGNALED(status) or status == 0, "a resumed run failed"
            return os.WIFSIGNALED(status)
        # The clock starts with the first round, whatever a process needs to start.
        if rounds_done(path) == rounds:
            started = time.monotonic()
        if time.monotonic() - started > moment:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return True
        time.sleep(0.001)


def rounds_done(path: Path) -> int:
    file = path / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def main() -> None:
    folder, settings, wanted = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    chance = random.Random(settings["seed"])
    kills = 0
    digests: list[str] = []
    while kills < wanted:
        path = folder / f"run{len(digests)}"
        while killed(path, settings, chance, seconds=0.4):
            kills += 1
        assert Run.open(path).finished
        digests.append(digest(path))
    print(json.dumps({"kills": kills, "digests": digests}))


if __name__ == "__main__":
    main()
