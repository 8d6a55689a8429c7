"""Does what `fedmef plan` chose hold? Runs it in a fresh process and reads the kernel's high-water mark.

For each network and limit: the plan, by measuring, and then a device of just this setting, from the message
over ordinary training to a round with extrusion and growth scores and its answer. The process must never have
had more resident memory above its imports than the limit, or the benchmark fails.

(RLIMIT_DATA would refuse too early: it counts address space, and oneDNN reserves more than it touches.)

    python benchmarks/device_limit.py [--models mobilenet_v2 resnet18] [--limits 64 128 256] [--json]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedmef.costs.plan import Candidate, plan_memory
from fedmef.costs.step import Shape
from fedmef.costs.step_process import warm_up
from fedmef.data import SyntheticImages
from fedmef.device.backend import backend_for
from fedmef.device.device import Device
from fedmef.device.resident import baseline_resident, give_back_freed_memory, peak_resident
from fedmef.device.training import Samples
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.federation.preparation import prepare
from fedmef.federation.server import Server
from fedmef.methods import find_method

STEPS = 3


def run_within(experiment: Experiment, candidate: Candidate, shape: Shape, classes: int) -> int:
    """Run a device with the candidate's setting; returns the most bytes above import that it ever had."""
    chosen = ("sparsity", "activation_sparsity", "cache_dtype", "batch_size")
    setting = {name: getattr(candidate, name) for name in chosen}
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
        raise RuntimeError(f"{candidate} ended with {finished.returncode}: {finished.stderr[-500:]}")
    return int(finished.stdout.splitlines()[-1])


def inside(question: dict[str, Any]) -> None:
    """The fresh process: a device in an ordinary round, and in one that adjusts."""
    give_back_freed_memory()
    experiment = make_experiment(
        {**question["experiment"], "local_epochs": 1, "devices": 1, "devices_per_round": 1}
    )
    samples = STEPS * experiment.batch_size
    data = SyntheticImages(
        tuple(question["shape"]), question["classes"], train=max(samples, 10), test=question["classes"]
    ).make()
    warm_up()
    with tempfile.TemporaryDirectory() as folder:
        messages = [Path(folder) / "ordinary", Path(folder) / "adjusting"]
        server = Server(experiment, prepare(experiment, data).model)
        for number, file in zip((0, experiment.adjust_every), messages, strict=True):
            file.write_bytes(server.broadcast(server.job(number), [0])[0])
        del server
        own = Samples(data.train.images, data.train.labels, np.arange(len(data.train)))
        device = Device(0, own, lambda network: backend_for(experiment, network), find_method=find_method)
        baseline = baseline_resident()
        for file in messages:
            device.train(file.read_bytes())
        print(peak_resident() - baseline)


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
    exceeded = False
    for model in arguments.models:
        for megabytes in arguments.limits:
            started = time.perf_counter()
            experiment = Experiment(model=model, batch_size=arguments.batch, device_memory=megabytes * 10**6)
            candidate = next(found for found in plan_memory(experiment, (3, 32, 32), 10) if found.fits)
            used = run_within(experiment, candidate, (3, 32, 32), 10)
            exceeded = exceeded or used > megabytes * 10**6
            row = {"model": model, "limit": megabytes * 10**6, **asdict(candidate), "used": used}
            if arguments.json:
                print(json.dumps(row), flush=True)
                continue
            setting = (
                f"s_m {candidate.sparsity:<5g} s_a {candidate.activation_sparsity:<5g} "
                f"{candidate.cache_dtype}  batch {candidate.batch_size:<4}"
            )
            taken = f"planned {(candidate.needed or 0) / 1e6:6.1f} MB  really {used / 1e6:6.1f} MB"
            print(
                f"{model:14}{megabytes:>5} MB  {setting} {taken}  ({time.perf_counter() - started:.0f} s)",
                flush=True,
            )
    sys.exit(1 if exceeded else 0)


if __name__ == "__main__":
    main()
