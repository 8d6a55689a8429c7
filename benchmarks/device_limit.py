"""Does what `fedmef plan` chose hold? Runs it in a process whose memory the system limits.

For each network and limit: the plan, by measuring, and then rounds of a device of just this setting, an
adjustment with extrusion and growth scores included, in a fresh process that may take the limit above its
imports and not a byte more (RLIMIT_DATA, which the kernel counts in whole mappings, so more than is resident).

    python benchmarks/device_limit.py [--models mobilenet_v2 resnet18] [--limits 64 128 256] [--json]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fedmef import Experiment
from fedmef.costs.plan import Candidate, plan_memory
from fedmef.costs.step import Shape
from fedmef.costs.step_worker import warm_up
from fedmef.data import SyntheticImages
from fedmef.engines import Fleet
from fedmef.experiment import make_experiment
from fedmef.resident import forget_peak, give_back_freed_memory, peak_resident, resident
from fedmef.server import Server

STEPS = 3


def run_within(experiment: Experiment, candidate: Candidate, shape: Shape, classes: int) -> int:
    """Run the candidate in a process of `device_memory` above import; returns the bytes that it took."""
    setting = asdict(candidate)
    del setting["needed"], setting["fits"]
    question = {
        "experiment": experiment.model_copy(update=setting).model_dump(mode="json"),
        "shape": shape,
        "classes": classes,
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--inside", json.dumps(question)]
    # One thread, as on a device: each further one has a stack and an arena of its own.
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    finished = subprocess.run(command, capture_output=True, text=True, env=surroundings, check=False)
    if finished.returncode:
        raise MemoryError(f"{candidate} ended with {finished.returncode}: {finished.stderr[-500:]}")
    return int(finished.stdout.splitlines()[-1])


def inside(question: dict[str, Any]) -> None:
    """The limited process: a device from its model to its answers."""
    give_back_freed_memory()
    torch.set_num_threads(1)
    experiment = make_experiment({**question["experiment"], "local_epochs": 1, "devices": 1, "devices_per_round": 1})
    samples = STEPS * experiment.batch_size
    data = SyntheticImages(
        tuple(question["shape"]), question["classes"], train=max(samples, 10), test=question["classes"]
    ).make()
    data.statistics()
    warm_up()
    forget_peak()
    baseline = resident()
    assert experiment.device_memory is not None
    status = Path("/proc/self/status").read_text().splitlines()
    mapped = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (mapped + experiment.device_memory,) * 2)

    fleet = Fleet.build(experiment, data)
    peak = peak_resident()
    for number in (0, experiment.adjust_every):
        messages = Server(fleet.method, fleet.model).broadcast(fleet.method.plan(number), [0])
        fleet.train(0, messages.pop(0))
        peak = max(peak, peak_resident())
    print(peak - baseline)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["mobilenet_v2", "resnet18"])
    parser.add_argument("--limits", nargs="+", type=int, default=[64, 128, 256], help="MB")
    parser.add_argument("--batch", type=int, default=64, help="the largest batch that is tried")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    parser.add_argument("--inside", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(arguments.inside)
        return
    for model in arguments.models:
        for megabytes in arguments.limits:
            started = time.perf_counter()
            experiment = Experiment(model=model, batch_size=arguments.batch, device_memory=megabytes * 10**6)
            candidate = next(found for found in plan_memory(experiment, (3, 32, 32), 10) if found.fits)
            used = run_within(experiment, candidate, (3, 32, 32), 10)
            row = {"model": model, "limit": megabytes * 10**6, **asdict(candidate), "used": used}
            if arguments.json:
                print(json.dumps(row), flush=True)
                continue
            print(
                f"{model:14}{megabytes:>5} MB  s_m {candidate.sparsity:<5g} s_a {candidate.activation_sparsity:<5g}"
                f" {candidate.cache_dtype}  batch {candidate.batch_size:<4} planned {(candidate.needed or 0) / 1e6:6.1f} MB"
                f"  really {used / 1e6:6.1f} MB  ({time.perf_counter() - started:.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
