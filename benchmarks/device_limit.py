"""Devices in a memory limit that the system enforces: those that fit complete, PyTorch's dense one is killed.

First every device of `device_process.py` in 1.1 times its measured peak: it must complete an ordinary and an
adjusting round; PyTorch's dense device (fedavg) in the same limit must die. Then plans: `fedmef plan`'s own
search for each network and limit, and a device of the chosen setting in a limit of exactly that size.

The limit is a memory control group (v1 or v2) where this process may make one. It counts what its processes
are the first to touch: heap, stacks, arena, page tables, and cached files, which go before anything is
killed; not libraries that the system has in its cache already. So the most resident memory of the process,
which counts these too, must be within the limit as well. Where there is no group, RLIMIT_DATA limits private
address space instead (`fedmef.device --memory`). MB are 10^6 bytes.

    python benchmarks/device_limit.py [--cases cifar ...] [--models resnet18 ...] [--limits 64 128] [--json]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # before opacus's package of the same name

from benchmarks.device_process import CASES, CLASSES, SHAPE, experiment_of
from fedmef.costs.device_process import (
    Shape,
    measure_process,
    native_command,
    surroundings,
    torch_command,
    write_rounds,
)
from fedmef.costs.plan import Candidate, plan_memory
from fedmef.device.cgroup import memory_group, missing_groups
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment, make_experiment

PLANNED = ("sparsity", "activation_sparsity", "cache_dtype", "batch_size")
LIMIT_DATA = ["/bin/sh", "-c", 'ulimit -d "$0" && exec "$@"']  # kB


@dataclass(frozen=True)
class Ended:
    """How a device fared in its limit.

    Attributes:
        completed: it answered every message.
        killed: processes that the kernel killed; None where no control group counts them.
        counted: the most bytes that the group counted; None likewise.
        resident: the most resident bytes that a process had; None if it did not complete.
    """

    completed: bool
    killed: int | None = None
    counted: int | None = None
    resident: int | None = None

    def within(self, limit: int) -> bool:
        """Whether it completed, and never had more."""
        return self.completed and not self.killed and (self.resident or 0) <= limit


def run_within(limit: int, experiment: Experiment, shape: Shape = SHAPE, classes: int = CLASSES) -> Ended:
    """A device of an experiment, over both rounds, with no more than `limit` bytes."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = write_rounds(experiment, shape, classes, Path(folder))
        commands = [torch_command(experiment, rounds)]
        if rounds.backend == "native":
            numbers = range(len(rounds.messages))
            program = "fedmef.costs.native_process"  # fedmef.device, which prints its peak
            commands = [native_command(rounds, number, experiment.method, program) for number in numbers]
        if not missing_groups():
            with memory_group(limit) as group:
                ended = _run(group.command(command) for command in commands)
                return replace(ended, killed=group.killed, counted=group.peak)
        if rounds.backend == "native":
            return _run([*command, "--memory", str(limit)] for command in commands)
        return _run([*LIMIT_DATA, str(limit // 1024), *command] for command in commands)


def _run(commands: Iterable[Sequence[str]]) -> Ended:
    """One after the other, until one fails. Each prints its most resident bytes first."""
    peaks = []
    for command in commands:
        ended = subprocess.run(command, capture_output=True, text=True, env=surroundings(), check=False)
        if ended.returncode:
            return Ended(completed=False)
        peaks.append(int(ended.stdout.splitlines()[-1].split()[0]))
    return Ended(completed=True, resident=max(peaks))


def in_its_own_limit(case: str) -> dict[str, Any]:
    """A device in 1.1 times its peak, and PyTorch's dense one."""
    experiment = experiment_of(case)
    peak = measure_process(experiment, SHAPE, CLASSES).process
    limit = round(1.1 * peak)
    dense = experiment.model_copy(update={"method": "fedavg", "backend": "torch"})
    own, torch = run_within(limit, experiment), run_within(limit, dense)
    holds = own.within(limit) and not torch.completed
    return {"case": case, "peak": peak, "limit": limit, "device": asdict(own), "torch": asdict(torch)} | {
        "holds": holds
    }


def planned(model: str, limit: int, batch: int) -> dict[str, Any]:
    """A plan, and a device of it in its limit; or why there is none."""
    experiment = make_experiment({"model": model, "batch_size": batch, "device_memory": limit})
    try:
        candidate = next(found for found in plan_memory(experiment, SHAPE, CLASSES) if found.fits)
    except UserError as error:
        return {"model": model, "limit": limit, "problem": str(error), "holds": False}
    ended = run_within(limit, with_setting(experiment, candidate))
    holds = ended.within(limit)
    return {"model": model, "limit": limit, **asdict(candidate), "device": asdict(ended), "holds": holds}


def with_setting(experiment: Experiment, candidate: Candidate) -> Experiment:
    """The experiment with what a plan has chosen."""
    return experiment.model_copy(update={name: getattr(candidate, name) for name in PLANNED})


def results(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for case in arguments.cases:
        yield in_its_own_limit(case)
    for model in arguments.models:
        for megabytes in arguments.limits:
            yield planned(model, megabytes * 10**6, arguments.batch)


def line(row: dict[str, Any]) -> str:
    """A result for people."""
    verdict = "holds" if row["holds"] else "DOES NOT HOLD"
    if "case" in row:
        torch = "killed" if row["torch"]["killed"] else "ran" if row["torch"]["completed"] else "died"
        return (
            f"{row['case']:13} peak {row['peak'] / 1e6:6.1f} MB, limit {row['limit'] / 1e6:6.1f} MB: the "
            f"device {'completes' if row['device']['completed'] else 'dies'}, PyTorch's dense one {torch}: "
            f"{verdict}"
        )
    if "needed" not in row:
        return f"{row['model']:13} {row['limit'] / 1e6:3.0f} MB: {row['problem']}"
    return (
        f"{row['model']:13} {row['limit'] / 1e6:3.0f} MB: s_m {row['sparsity']:<5g} "
        f"s_a {row['activation_sparsity']:<5g} {row['cache_dtype']} batch {row['batch_size']:<3} "
        f"planned {row['needed'] / 1e6:6.1f} MB on {row['backend']}, "
        f"resident {(row['device']['resident'] or 0) / 1e6:6.1f} MB: {verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", nargs="*", choices=[*CASES], default=[*CASES])
    parser.add_argument("--models", nargs="*", default=["mobilenet_v2", "resnet18"])
    parser.add_argument("--limits", nargs="+", type=int, default=[64, 128, 256], help="MB")
    parser.add_argument("--batch", type=int, default=64, help="the largest batch that is tried")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of text")
    arguments = parser.parse_args()
    if not arguments.json:
        print("enforced by", "RLIMIT_DATA" if missing_groups() else "a memory control group", flush=True)
    holds = True
    for row in results(arguments):
        print(json.dumps(row) if arguments.json else line(row), flush=True)
        holds = holds and row["holds"]
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
