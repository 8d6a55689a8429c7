"""A simulated fleet with churn: devices are killed, stopped and run out of memory, and the server is killed.

`python -m tests.federation.churn FOLDER --minutes 120 --server-kills 5` runs the digits on worker processes,
disturbs them, resumes after every kill, and then compares the end with two runs that nobody disturbed:

- one that loses the same updates as the disturbed one: it must end in the same bits;
- one that loses none: it must end within 3 points.

It prints what it did and what processes held over time, as JSON, and ends with 1 if something grew.
"""

import argparse
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fedmef
from fedmef.experiment.settings import Experiment
from fedmef.runs.directory import Run
from tests.federation.small import digest

DEADLINE = 15.0
STARVED = 0.02
LOADED, EARLY = 32_000_000, 0.05  # bytes of a worker that has started, and how often one is disturbed before
DISTURBANCES = ("kill", "stop", "stop", "stop", "out of memory")
PAUSES = (0.2, 2.0)  # seconds between two disturbances
SETTINGS: dict[str, Any] = {
    "devices": 20,
    "devices_per_round": 6,
    "adjust_every": 5,
    "evaluate_every": 10,
    "min_devices": 1,
    "deadline": DEADLINE,
    "seed": 11,
}


@dataclass(frozen=True)
class Sample:
    """What a server and its workers hold at a moment."""

    seconds: float
    server: int
    handles: int
    server_memory: int
    processes: int
    worker_memory: int
    shared_memory: int
    scratch: int


class Churn:
    """A run in processes of its own, and what disturbs it."""

    def __init__(self, folder: Path, rounds: int, seed: int) -> None:
        self.path = folder / "disturbed"
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.log = (folder / "output.txt").open("ab")
        self.rounds = rounds
        self.chance = random.Random(seed)
        self.stopped: set[int] = set()
        self.done: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self.begun = time.monotonic()
        self.server = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "fedmef", "run"]
        if (self.path / "config.toml").is_file():
            command += ["--resume", str(self.path)]
        else:
            settings = {**SETTINGS, "engine": "processes", "workers": 2, "rounds": self.rounds}
            for name, value in settings.items():
                command += [f"--{name.replace('_', '-')}", str(value)]
            command += ["--out", str(self.path)]
        return subprocess.Popen(
            command,
            stdout=self.log,
            stderr=self.log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(self.scratch)},
            start_new_session=True,
        )

    def workers(self) -> list[int]:
        return [process for process in children(self.server.pid) if b"fedmef.device" in command_of(process)]

    def disturb(self) -> None:
        """Something happens to a worker; a stopped one goes on some time later, or is given up before."""
        for process in list(self.stopped):
            if self.chance.random() < 0.05:
                self._continue(process)
        workers = [
            process
            for process in self.workers()
            if process not in self.stopped and (resident(process) > LOADED or self.chance.random() < EARLY)
        ]
        if not workers:
            return
        worker, what = self.chance.choice(workers), self.chance.choice(DISTURBANCES)
        with suppress(ProcessLookupError, PermissionError):
            if what == "kill":
                os.kill(worker, signal.SIGKILL)
            elif what == "stop":
                os.kill(worker, signal.SIGSTOP)
                self.stopped.add(worker)
            else:  # it gets no more than it has, for a moment: what it allocates then fails
                resource.prlimit(worker, resource.RLIMIT_DATA, (2**20, resource.RLIM_INFINITY))
                time.sleep(STARVED)
                resource.prlimit(worker, resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
            self.done[what] += 1

    def _continue(self, process: int) -> None:
        self.stopped.discard(process)
        with suppress(ProcessLookupError):
            if b"fedmef.device" in command_of(process):  # and not another process of the same number
                os.kill(process, signal.SIGCONT)

    def kill_server(self) -> None:
        self.server.kill()
        self.server.wait()
        for process in list(self.stopped):  # whoever is stopped cannot see that its server is gone
            self._continue(process)
        self.done["kill server"] += 1
        self.server = self._start()

    def sample(self) -> None:
        workers = self.workers()
        with suppress(OSError):
            self.samples.append(
                Sample(
                    seconds=round(time.monotonic() - self.begun, 1),
                    server=self.server.pid,
                    handles=len(list(Path(f"/proc/{self.server.pid}/fd").iterdir())),
                    server_memory=resident(self.server.pid),
                    processes=len(children(self.server.pid)),
                    worker_memory=max(map(resident, workers), default=0),
                    shared_memory=len(list(Path("/dev/shm").iterdir())),
                    scratch=len(list(self.scratch.iterdir())),
                )
            )

    def run(self, minutes: float, server_kills: int) -> None:
        """Until the run is finished; disturbed for so long, then left in peace."""
        seconds = 60 * minutes
        kills = [(number + 1) * seconds / (server_kills + 1) for number in range(server_kills)]
        next_disturbance = next_sample = 0.0
        while self.server.poll() is None:
            now = time.monotonic() - self.begun
            if kills and now > kills[0] and rounds_done(self.path):
                kills.pop(0)
                self.kill_server()
            if now > next_disturbance and now < seconds:
                next_disturbance = now + self.chance.uniform(*PAUSES)
                self.disturb()
            if now > next_sample:
                next_sample = now + 5
                self.sample()
            time.sleep(0.2)
        for process in list(self.stopped):
            self._continue(process)
        if self.server.returncode != 0:
            raise SystemExit(f"the server ended with {self.server.returncode}: {self.log.name}")

    def growth(self) -> list[str]:
        """What is not flat: a server's late samples against its early ones."""
        found = []
        for server in dict.fromkeys(sample.server for sample in self.samples):
            own = [sample for sample in self.samples if sample.server == server][2:]  # it starts
            if len(own) < 12:
                continue
            early, late = own[: len(own) // 3], own[-len(own) // 3 :]
            for name, allowed in (("handles", 1.0), ("server_memory", 1.05), ("worker_memory", 1.05)):
                before = statistics.median(getattr(sample, name) for sample in early)
                after = statistics.median(getattr(sample, name) for sample in late)
                if after > allowed * before + (2 if name == "handles" else 0):
                    found.append(f"{name} of server {server}: {before} at first, {after} at last")
        if max(sample.processes for sample in self.samples) > 4:  # two workers, and one being replaced
            found.append("more processes than workers")
        if self.samples[-1].shared_memory > self.samples[0].shared_memory:
            found.append("shared memory was left behind")
        return found


def children(parent: int) -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(file.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(file.parent.name))
    return found


def command_of(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def resident(process: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def rounds_done(path: Path) -> int:
    file = path / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def undisturbed(folder: Path, rounds: int, faults: str) -> Run:
    """Without processes, which no bit depends on."""
    settings = {**SETTINGS, "engine": "inline", "rounds": rounds, "deadline": None, "faults": faults}
    return fedmef.run(Experiment(**settings), folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--server-kills", type=int, required=True)
    arguments = parser.parse_args()
    churn = Churn(arguments.folder, arguments.rounds, seed=1)
    try:
        churn.run(arguments.minutes, arguments.server_kills)
    finally:
        churn.server.kill()
    run = Run.open(churn.path)
    lost = [(record.round, failed) for record in run.rounds for failed in record.lost]
    faults = ",".join(f"drop@{number}:{failed.device}" for number, failed in lost)
    same_losses = undisturbed(arguments.folder / "same_losses", arguments.rounds, faults)
    no_losses = undisturbed(arguments.folder / "no_losses", arguments.rounds, "")
    accuracies = [one.summary.test_accuracy for one in (run, no_losses)]
    problems = churn.growth()
    if digest(run.path) != digest(same_losses.path):
        problems.append("not the bits of a run that lost the same updates")
    if abs(accuracies[0] - accuracies[1]) > 0.03:
        problems.append("more than 3 points from a run that lost no updates")
    result = {
        "minutes": round((time.monotonic() - churn.begun) / 60, 1),
        "rounds": len(run.rounds),
        "done": dict(churn.done),
        "lost": dict(Counter(failed.reason for _, failed in lost)),
        "accuracy": {"disturbed": accuracies[0], "no losses": accuracies[1]},
        "samples": [asdict(sample) for sample in (churn.samples[len(churn.samples) // 8], churn.samples[-1])],
        "problems": problems,
    }
    (arguments.folder / "samples.json").write_text(json.dumps([asdict(sample) for sample in churn.samples]))
    print(json.dumps(result, indent=1))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
