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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.data import Dataset
from fedmef.device import device
from fedmef.device.batches import epoch
from fedmef.device.training import LocalTraining
from fedmef.experiment.randomness import generator_for
from fedmef.experiment.settings import Experiment
from fedmef.federation import evaluation, server
from fedmef.federation.collection import choose_devices
from fedmef.federation.engines.inline import InlineEngine
from fedmef.federation.preparation import Prepared, prepare
from fedmef.federation.round import play_round
from fedmef.federation.server import Server
from fedmef.federation.simulated.fleet import Fleet, partition
from fedmef.nn import cache, convolution, relu
from fedmef.nn.backend import TorchBackend
from fedmef.nn.module import load_state
from fedmef.sparsity.arrays import Array
from fedmef.wire.store import Store

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
    "ReLU": of(relu._Clamp, "forward", "backward") + of(F, "relu"),
    "rest of backward": of(torch.Tensor, "backward"),
    "optimiser": of(TorchBackend, "_descend"),
    "data loading": of(LocalTraining, "_batch") + of(TorchBackend, "normalized"),
    "state in and out": of(TorchBackend, "load", "state"),
    "messages": of(server, "encode_broadcast")
    + of(device, "decode_broadcast", "encode_update")
    + of(Server, "check"),
    "aggregation": of(Server, "absorb", "adjust"),
    EVALUATION: of(evaluation, "evaluate"),
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
            return self._timed(part, function, *arguments, **options)

        return wrapper

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


def prepared_run(method: str, arguments: argparse.Namespace, data: Dataset | None) -> Prepared:
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
    return prepare(experiment, data)


def library_round(prepared: Prepared, folder: Path) -> Callable[[], None]:
    experiment, data = prepared.experiment, prepared.dataset
    engine = InlineEngine(Fleet.build(experiment, data, Store(folder / experiment.method)))
    central, backend = Server(experiment, prepared.model), TorchBackend(prepared.model.network)

    def run() -> None:
        play_round(1, central, engine, lambda: evaluation.evaluate(backend, central.model.state, data.test))

    return run


def bare_loop(prepared: Prepared) -> Callable[[], None]:
    model, experiment, data = prepared.model, prepared.experiment, prepared.dataset
    backend, shares = TorchBackend(model.network), partition(experiment, data)
    module = backend.module
    load_state(module, model.network, model.state)

    def loaded(images: Array, labels: Array) -> tuple[Tensor, Tensor]:
        return backend.normalized(images), torch.from_numpy(labels)

    def training_batches(number: int) -> list[tuple[Tensor, Tensor]]:
        generator, train = generator_for(experiment.seed, "batches", 1, number), data.train
        return [
            loaded(train.images[chosen], train.labels[chosen])
            for _ in range(experiment.local_epochs)
            for chosen in epoch(shares[number], experiment.batch_size, experiment.left_over, generator)
        ]

    training = [training_batches(number) for number in choose_devices(experiment, 1)]
    size, test = evaluation.BATCH_SIZE, data.test
    parts = np.split(np.arange(len(test)), range(size, len(test), size))
    testing = [backend.normalized(test.images[part]) for part in parts]

    optimizer = torch.optim.SGD(module.parameters(), lr=experiment.learning_rate or 0.1)
    optimizer.zero_grad()  # PyTorch imports a part of itself at the first one

    def run() -> None:
        for own in training:
            module.train()
            for images, labels in own:
                optimizer.zero_grad()
                F.cross_entropy(module(images), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        module.eval()
        with torch.no_grad():
            for images in testing:
                module(images)

    return run


def cpu_seconds(run: Callable[[], None]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    data: Dataset | None = None
    prepared: dict[str, Prepared] = {}
    for name, method in METHODS.items():
        prepared[name] = prepared_run(method, arguments, data)
        data = prepared[name].dataset
    runs = {f"{name} round": library_round(own, folder / "plain") for name, own in prepared.items()}
    runs |= {f"{name} bare": bare_loop(own) for name, own in prepared.items()}
    turns = [{name: cpu_seconds(run) for name, run in runs.items()} for _ in range(arguments.rounds)]
    seconds = {name: statistics.median(turn[name] for turn in turns) for name in runs}
    shares: dict[str, dict[str, float]] = {}
    timers = Timers()
    for name, own in prepared.items():
        run = library_round(own, folder / "timed")  # a network that is built now calls what is timed
        run()  # whatever is done once is done
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
