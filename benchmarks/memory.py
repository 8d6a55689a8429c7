"""Bytes that a training step keeps alive, and its peak: the plain network with BatchNorm next to FedMef's.

Activations are what a forward pass leaves for the backward pass, by PyTorch's own allocator; parameters and
gradients are counted after a backward pass. Nothing is estimated. Ratios are to the plain network.

Then the peak of a whole training step (FedMef's with its adjustment), in tensors on PyTorch, and the whole
process of a device as it runs: FedMef's without PyTorch (`device_process.py` breaks it down).

    python benchmarks/memory.py [--batch 64] [--json] [--plot FILE.png]
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmef.costs.device_process import ProcessCost, measure_process
from fedmef.costs.tensors import TensorCost, measure_tensors
from fedmef.experiment.settings import make_experiment

CASES = (("resnet18", "cifar"), ("resnet18", "imagenet"), ("mobilenet_v2", "cifar"))
VARIANTS: dict[str, dict[str, Any]] = {
    "dense, BatchNorm": {"method": "fedavg"},
    "FedMef, fp32 cache": {"method": "fedmef"},
    "FedMef, fp16 cache": {"method": "fedmef", "cache_dtype": "fp16"},
}


@dataclass(frozen=True)
class Measurement:
    """One network's step."""

    network: str
    variant: str
    cost: TensorCost
    process: ProcessCost

    @property
    def activations(self) -> int:
        return self.cost.cache

    @property
    def parameters_and_gradients(self) -> int:
        return self.cost.parameters + self.cost.gradients


def measure(network: str, stem: str, batch: int) -> list[Measurement]:
    found = []
    for variant, settings in VARIANTS.items():
        experiment = make_experiment({"model": network, "stem": stem, "batch_size": batch, **settings})
        cost = measure_tensors(experiment, (3, 32, 32), 10)
        process = measure_process(experiment, (3, 32, 32), 10)
        found.append(Measurement(f"{network}, {stem} stem", variant, cost, process))
    return found


def print_rows(rows: Sequence[Measurement]) -> None:
    """What is kept, then the peaks; ratios are to the network's first row."""
    dense = {row.network: row for row in reversed(rows)}
    print(
        f"{'network':28}{'variant':22}{'activations':>14}{'ratio':>8}"
        f"{'parameters + gradients':>26}{'ratio':>8}"
    )
    for row in rows:
        plain = dense[row.network]
        kept = row.activations / plain.activations
        state = row.parameters_and_gradients / plain.parameters_and_gradients
        print(
            f"{row.network:28}{row.variant:22}{row.activations / 1e6:>11.1f} MB{kept:>8.3f}"
            f"{row.parameters_and_gradients / 1e6:>23.1f} MB{state:>8.3f}"
        )
    print(f"\n{'network':28}{'variant':22}{'peak':>10}{'ratio':>8}{'process':>12}{'ratio':>8}{'a step':>10}")
    for row in rows:
        cost, own, plain = row.cost, row.process, dense[row.network]
        print(
            f"{row.network:28}{row.variant:22}{cost.peak / 1e6:>7.1f} MB{cost.peak / plain.cost.peak:>8.3f}"
            f"{own.process / 1e6:>9.1f} MB{own.process / plain.process.process:>8.3f}{own.seconds:>8.2f} s"
        )


def plot(rows: Sequence[Measurement], batch: int, file: Path) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415  (only for the picture)

    networks = list(dict.fromkeys(row.network for row in rows))
    figure, axes = plt.subplots(1, len(networks), figsize=(9, 3.5), layout="constrained")
    for axis, network in zip(axes, networks, strict=True):
        group = [row for row in rows if row.network == network]
        labels = [row.variant.replace(", ", "\n") for row in group]
        activations = [row.activations / 1e6 for row in group]
        states = [row.parameters_and_gradients / 1e6 for row in group]
        axis.bar(labels, activations, color="#0072b2", label="kept activations")
        axis.bar(labels, states, bottom=activations, color="#e69f00", label="parameters + gradients")
        for index, (first, second) in enumerate(zip(activations, states, strict=True)):
            axis.text(index, first + second, f"{first + second:.0f} MB", ha="center", va="bottom", fontsize=9)
        axis.set_title(
            network.replace("resnet18", "ResNet18").replace("mobilenet_v2", "MobileNetV2"), fontsize=10
        )
        axis.margins(y=0.12)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("measured, MB")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9, frameon=False
    )
    figure.suptitle(
        f"What a training step keeps alive (batch {batch}, 32x32 images, both sparsities 90 %)", fontsize=11
    )
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=64, help="samples in the batch")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw a picture (needs matplotlib)")
    arguments = parser.parse_args()
    rows = [row for case in CASES for row in measure(*case, arguments.batch)]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print_rows(rows)
    if arguments.plot:
        plot(rows, arguments.batch, arguments.plot)


if __name__ == "__main__":
    main()
