"""One local step of a device: FedMef's sparse ResNet18 against plain PyTorch with BatchNorm, side by side.

A step is zero_grad, forward, loss, backward and an SGD step. Both networks take turns in one run, so that
whatever else the machine does hits both; the medians are compared.

How to read it: `ratio` is FedMef's median over the plain one. The goal is 1.4 or less; 1 would mean that
sparse storage and pruned caches cost no time at all. Trust it only on an idle machine: `spread` (the
interquartile range over the median) should be below 0.2, and `load` (what ran at the start) plus the threads
must not exceed the cores. Threads that wait for a core wait far more often in FedMef's many small operations:
on two cores of which one was taken, 2 threads said 2.4 where 1 thread said 1.1. For memory see `memory.py`.

    python benchmarks/local_step.py --threads 1 --steps 20
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn

from fedmef.models import build_model
from fedmef.nn import sparsify

GOAL = 1.4


@dataclass(frozen=True)
class Timing:
    """Seconds of one network's steps."""

    median: float
    spread: float


def local_step(model: nn.Module, batch: int) -> Callable[[], None]:
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def alternate(steps: dict[str, Callable[[], None]], times: int) -> dict[str, Timing]:
    """Each in turn, `times` times, after one turn that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(times + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if turn > 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: timing(measured) for name, measured in seconds.items()}


def timing(seconds: list[float]) -> Timing:
    quarter, median, three_quarters = statistics.quantiles(seconds, n=4)
    return Timing(median, (three_quarters - quarter) / median)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch")
    parser.add_argument("--steps", type=int, default=10, help="that count, of each network (at least 2)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--sparsity", type=float, default=0.9, help="of weights and of activations")
    parser.add_argument("--half", action="store_true", help="keep activations as float16")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    arguments = parser.parse_args()
    if arguments.steps < 2:
        parser.error("--steps must be at least 2")
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load + arguments.threads > cores + 0.5:
        print(
            f"load {load:.1f} and {arguments.threads} threads on {cores} cores: do not trust this",
            file=sys.stderr,
        )
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    def network() -> nn.Module:
        return build_model("resnet18", classes=10, channels=3, width=arguments.width, seed=0)

    sparse = sparsify(
        network(),
        sparsity=arguments.sparsity,
        normalize=True,
        activation_sparsity=arguments.sparsity,
        cache_dtype=torch.float16 if arguments.half else None,
    )
    steps = {"plain": local_step(network(), arguments.batch), "fedmef": local_step(sparse, arguments.batch)}
    timings = alternate(steps, arguments.steps)
    ratio = timings["fedmef"].median / timings["plain"].median
    if arguments.json:
        report = {name: asdict(measured) for name, measured in timings.items()}
        print(json.dumps({**vars(arguments), **report, "ratio": ratio, "goal": GOAL, "load": load}))
        return
    for name, measured in timings.items():
        print(f"{name:7} {1000 * measured.median:8.1f} ms a step   spread {measured.spread:.2f}")
    print(f"ratio   {ratio:8.2f}   (goal: at most {GOAL}; {arguments.threads} threads, load {load:.1f})")


if __name__ == "__main__":
    main()
