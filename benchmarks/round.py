"""A desk-scale round of FedAvg and of FedMef, against bare PyTorch loops that take the same steps.

The round is the library's own, inline, with messages, checks and evaluation: 100 devices, Dirichlet 0.5, 10 a
round, E = 2, batch 64, ResNet18 of width 16, s_m = s_a = 0.9, images of CIFAR-10's shape. A bare loop trains
the same network on the same batches, loaded before the clock starts, and predicts the test images: no
federation. All take turns on one thread, and CPU seconds are counted.

How to read it: `FedMef / FedAvg` is the price of sparse storage and pruned caches (goal: at most 1.3), and
`round / bare` that of the federation (goal: at most 1.1). The shares come from a further round with timers,
each part without the parts inside it; of dense layers only the forward pass has a part of its own, as PyTorch
runs their backward passes in one. With fewer `--images`, what is done once a device weighs more.

    python benchmarks/round.py --stem strided [--images 50000] [--rounds 3] [--data-dir DIR] [--json]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.data import Split, batches
from fedmef.device import device
from fedmef.device import training as local_training
from fedmef.experiment.settings import Experiment
from fedmef.federation import api as federation
from fedmef.federation import evaluation, server
from fedmef.federation.collection import choose_devices
from fedmef.federation.engines import Fleet
from fedmef.federation.engines.inline import InlineEngine
from fedmef.federation.preparation import build_fleet
from fedmef.federation.server import Server
from fedmef.federation.simulated.fleet import prepared_model
from fedmef.models import layout_for
from fedmef.nn import cache, convolution, relu
from fedmef.wire import MaskMemory

METHODS = {"FedAvg": "fedavg", "FedMef": "fedmef"}
EVALUATION = "evaluation"  # as a whole, whatever it calls


def of(owner: Any, *names: str) -> list[tuple[Any, str]]:
    return [(owner, name) for name in names]


PARTS = {
    "convolutions": of(convolution, "_convolve", "_weight_gradient", "_input_gradient")
    + of(nn.Conv2d, "forward"),
    "normalisation": of(convolution.SparseWeight, "__init__", "dense", "backward")
    + of(nn.BatchNorm2d, "forward"),
    "weights' positions": of(convolution, "active_positions"),
    "SAP: selection": of(cache, "largest_magnitudes"),
    "SAP: packing": of(cache.PrunedActivation, "prune"),
    "SAP: unpacking": of(cache.PrunedActivation, "restore"),
    "ReLU": of(relu._Clamp, "forward", "backward") + of(nn.ReLU, "forward"),
    "rest of backward": of(torch.Tensor, "backward"),
    "optimiser": of(torch.optim.SGD, "step", "zero_grad"),
    "data loading": of(local_training, "batches"),
    "messages": of(server, "encode_broadcast")
    + of(device, "decode_broadcast", "encode_update")
    + of(Server, "check"),
    "aggregation": of(Server, "absorb", "adjust"),
    EVALUATION: of(federation, "_evaluate"),
}


class Timers:
    """CPU seconds by part, of all that is called from now on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._evaluates = False
        for part, functions in PARTS.items():
            for owner, name in functions:
                wrapper = self._wrapped(part, getattr(owner, name))
                unbound = isinstance(vars(owner).get(name), staticmethod | classmethod)
                setattr(owner, name, staticmethod(wrapper) if unbound else wrapper)

    def _wrapped(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if function is batches:
                return self._each(part, function(*arguments, **options))
            return self._timed(part, function, *arguments, **options)

        return wrapper

    def _each(self, part: str, items: Iterator[Any]) -> Iterator[Any]:
        while (item := self._timed(part, next, items, None)) is not None:
            yield item

    def _timed(self, part: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self._evaluates:
            return function(*arguments, **options)
        self._evaluates = part == EVALUATION
        started, inside = time.process_time(), sum(self.seconds.values())
        try:
            return function(*arguments, **options)
        finally:
            took = time.process_time() - started
            self.seconds[part] += took - (sum(self.seconds.values()) - inside)
            self._evaluates = False


def make_fleet(method: str, arguments: argparse.Namespace, folder: Path) -> Fleet:
    experiment = Experiment(
        method=method,
        dataset="cifar10" if arguments.data_dir else "synthetic",
        data_dir=arguments.data_dir,
        synthetic_train=arguments.images,
        synthetic_test=arguments.images // 5,
        model="resnet18",
        width=16,
        stem=arguments.stem,
        devices=100,
        local_epochs=2,
        batch_size=64,
        learning_rate=0.1,
        adjust_every=1000,  # an ordinary round: one that adjusts takes one more step a device
        engine="inline",
    )
    return build_fleet(experiment, memory=MaskMemory(folder / method))


def network(fleet: Fleet) -> nn.Module:
    return prepared_model(fleet.experiment, fleet.method, fleet.dataset.classes, fleet.dataset.shape[0])


def library_round(fleet: Fleet) -> Callable[[], None]:
    engine, central = InlineEngine(fleet), Server(fleet.method, network(fleet))

    def run() -> None:
        federation._round(1, central, engine, fleet)

    return run


def bare_loop(fleet: Fleet) -> Callable[[], None]:
    model, experiment, data = network(fleet), fleet.experiment, fleet.dataset
    layout = layout_for(model)

    def load(split: Split, indices: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
        loaded = batches(split, indices, size, *data.statistics(), generator=None)
        return [(images.contiguous(memory_format=layout), labels) for images, labels in loaded]

    chosen = [fleet.shares[number] for number in choose_devices(experiment, 1)]
    training = [load(data.train, share, experiment.batch_size) for share in chosen]
    test = load(data.test, torch.arange(len(data.test)), evaluation.BATCH_SIZE)

    def run() -> None:
        for own in training:
            model.train()
            optimizer = torch.optim.SGD(model.parameters(), lr=experiment.learning_rate)
            for images, labels in own * experiment.local_epochs:
                optimizer.zero_grad()
                F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        model.eval()
        with torch.no_grad():
            for images, _ in test:
                model(images)

    return run


def cpu_seconds(run: Callable[[], None]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    fleets = {name: make_fleet(method, arguments, folder) for name, method in METHODS.items()}
    rounds = {name: library_round(fleet) for name, fleet in fleets.items()}
    runs = {f"{name} round": run for name, run in rounds.items()}
    runs |= {f"{name} bare": bare_loop(fleet) for name, fleet in fleets.items()}
    turns = [{name: cpu_seconds(run) for name, run in runs.items()} for _ in range(arguments.rounds)]
    seconds = {name: statistics.median(turn[name] for turn in turns) for name in runs}
    shares: dict[str, dict[str, float]] = {}
    timers = Timers()
    for name, run in rounds.items():
        timers.seconds.clear()
        total = cpu_seconds(run)
        shares[name] = {part: timers.seconds[part] / total for part in PARTS if timers.seconds[part]}
        shares[name]["the rest"] = 1 - sum(shares[name].values())
    ratios = {f"{name} round / bare": seconds[f"{name} round"] / seconds[f"{name} bare"] for name in METHODS}
    for kind in ("round", "bare"):
        ratios[f"FedMef / FedAvg, {kind}"] = seconds[f"FedMef {kind}"] / seconds[f"FedAvg {kind}"]
    return {"seconds": seconds, "ratios": ratios, "shares": shares}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stem", choices=("cifar", "strided"), default="strided", help="of ResNet18")
    parser.add_argument("--images", type=int, default=50_000, help="synthetic ones; a fifth more to test")
    parser.add_argument("--rounds", type=int, default=1, help="that count, of each; the median is taken")
    parser.add_argument("--data-dir", type=Path, help="folder with CIFAR-10, instead of synthetic images")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(arguments, Path(folder))
    if arguments.json:
        print(json.dumps({**vars(arguments), **measured}, default=str))
        return
    for name, value in [*measured["seconds"].items(), *measured["ratios"].items()]:
        print(f"{name:24}{value:8.2f}{'' if '/' in name else ' s of CPU'}")
    for name, shares in measured["shares"].items():
        print(f"\n{name}: where the round's time goes")
        for part, share in shares.items():
            print(f"  {part:22}{share:8.1%}")


if __name__ == "__main__":
    main()
