"""The whole process of a device: its peak resident memory without PyTorch, next to PyTorch's dense device.

For each network: a fresh `python -m fedmef.device` trains an ordinary round and one that adjusts masks, on
noise, with both sparsities 90 %; the higher VmHWM counts: interpreter, libraries, messages, data and
training. PyTorch's is a fresh process that trains the dense network with BatchNorm (fedavg), in the same run.
One thread. MB are 10^6 bytes. Without --json, what each peak consists of follows (`_device_parts.py`).

    python benchmarks/device_process.py [--json] [--cases imagenet cifar mobilenet width16 batch8]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmef.costs.device_process import (
    measure_process,
    measure_torch_dense,
    native_command,
    surroundings,
    write_rounds,
)
from fedmef.experiment.settings import Experiment, make_experiment

SHAPE, CLASSES = (3, 32, 32), 10
CASES: dict[str, tuple[dict[str, Any], float]] = {  # settings, and the goal in MB
    "imagenet": ({"model": "resnet18", "stem": "imagenet"}, 64),
    "cifar": ({"model": "resnet18", "stem": "cifar"}, 144),
    "mobilenet": ({"model": "mobilenet_v2", "stem": "cifar"}, 160),
    "width16": ({"model": "resnet18", "stem": "cifar", "width": 16}, 56),
    "batch8": ({"model": "resnet18", "stem": "cifar", "batch_size": 8}, 64),
}
PUBLISHED_WIDTHS = {"resnet18": 64, "mobilenet_v2": 32}
PARTS = Path(__file__).with_name("_device_parts.py")


@dataclass(frozen=True)
class Row:
    """One network; MB are 10^6 bytes."""

    network: str
    stem: str
    width: int
    batch: int
    process_mb: float
    torch_mb: float


def experiment_of(case: str) -> Experiment:
    """A device of the benchmark."""
    common = {"method": "fedmef", "sparsity": 0.9, "activation_sparsity": 0.9, "batch_size": 64}
    return make_experiment({**common, "backend": "native", **CASES[case][0]})


def measure(case: str) -> Row:
    experiment = experiment_of(case)
    own = measure_process(experiment, SHAPE, CLASSES)
    dense = measure_torch_dense(experiment, SHAPE, CLASSES)
    return Row(
        experiment.model,
        experiment.stem,
        experiment.width or PUBLISHED_WIDTHS[experiment.model],
        experiment.batch_size,
        round(own.process / 1e6, 1),
        round(dense.process / 1e6, 1),
    )


def break_down(case: str) -> dict[str, Any]:
    """What the peak of the round that needs more consists of; it is measured again, from inside."""
    experiment = experiment_of(case)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        rounds = write_rounds(experiment, SHAPE, CLASSES, Path(folder))
        for number, name in enumerate(("ordinary", "adjusting")[: len(rounds.messages)]):
            options = native_command(rounds, number, experiment.method)
            options = options[options.index("fedmef.device") + 1 :]
            command = [sys.executable, str(PARTS), *options]
            ended = subprocess.run(command, capture_output=True, text=True, env=surroundings(), check=True)
            found.append({"case": case, "round": name, **json.loads(ended.stdout)})
    return max(found, key=lambda one: int(one["peak"]))


def print_rows(rows: Sequence[Row], cases: Sequence[str]) -> None:
    print(f"{'network':14}{'stem':10}{'width':>6}{'batch':>6}{'process MB':>14}{'goal':>6}{'PyTorch MB':>14}")
    for row, case in zip(rows, cases, strict=True):
        print(
            f"{row.network:14}{row.stem:10}{row.width:>6}{row.batch:>6}{row.process_mb:>14.1f}"
            f"{CASES[case][1]:>6g}{row.torch_mb:>14.1f}"
        )


def print_parts(breakdown: Sequence[dict[str, Any]]) -> None:
    print("\nWhat each peak consists of, MB (measured again, from inside of the process)")
    print(f"{'':20}" + "".join(f"{one['case']:>14}" for one in breakdown))
    print(f"{'round':20}" + "".join(f"{one['round']:>14}" for one in breakdown))
    print(f"{'at its most during':20}" + "".join(f"{one['during']:>14}" for one in breakdown))
    for part in breakdown[0]["parts"]:
        print(f"{part:20}" + "".join(f"{one['parts'][part] / 1e6:>14.1f}" for one in breakdown))
    print(f"{'together':20}" + "".join(f"{one['peak'] / 1e6:>14.1f}" for one in breakdown))
    print(
        "rest: Python's objects of the round, growth scores and marked weights, what the allocator keeps.\n"
        "caches, dense buffers: the arena, at the instruction that has most of it in use."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=[*CASES], default=[*CASES])
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    arguments = parser.parse_args()
    rows = [measure(case) for case in arguments.cases]
    breakdown = [break_down(case) for case in arguments.cases]
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "breakdown": breakdown}))
        return
    print_rows(rows, arguments.cases)
    print_parts(breakdown)


if __name__ == "__main__":
    main()
