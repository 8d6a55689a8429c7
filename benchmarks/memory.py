"""Bytes that a training step keeps alive: the plain network with BatchNorm beside FedMef's.

Activations are what a forward pass leaves for the backward pass, by PyTorch's own allocator; parameters and
gradients are counted after a backward pass. Nothing is estimated. Ratios are to the plain network.

Then the peak of a whole training step (FedMef's with its adjustment), in tensors and in resident memory, from
a process of its own: `fedmef.costs.measure_step`.

    python benchmarks/memory.py [--batch 64] [--json] [--plot FILE.png]
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from fedmef import sparsify
from fedmef.costs import StepCost, bytes_kept_for_backward, bytes_of_state, measure_step
from fedmef.experiment.settings import make_experiment
from fedmef.models import build_model, layout_for

CASES = (("resnet18", "cifar"), ("resnet18", "imagenet"), ("mobilenet_v2", "cifar"))
VARIANTS: dict[str, torch.dtype | None] = {"FedMef, fp32 cache": None, "FedMef, fp16 cache": torch.float16}


@dataclass(frozen=True)
class Measurement:
    """One network's bytes."""

    network: str
    variant: str
    activations: int
    parameters_and_gradients: int


def measure(network: str, stem: str, batch: int) -> list[Measurement]:
    name = f"{network}, {stem} stem"
    images = torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def dense() -> nn.Module:
        return build_model(network, classes=10, channels=3, stem=stem, seed=0)

    models = {"dense, BatchNorm": dense()}
    for variant, dtype in VARIANTS.items():
        models[variant] = sparsify(
            dense(), sparsity=0.9, normalize=True, activation_sparsity=0.9, cache_dtype=dtype
        )
    return [
        Measurement(name, variant, bytes_kept_for_backward(model, laid_out), bytes_of_state(model, laid_out))
        for variant, model in models.items()
        for laid_out in [images.contiguous(memory_format=layout_for(model))]  # as a device has it
    ]


def measure_peaks(batch: int) -> dict[str, dict[str, StepCost]]:
    """A step's cost by network and method."""
    return {
        f"{network}, {stem} stem": {
            method: measure_step(
                make_experiment({"method": method, "model": network, "stem": stem, "batch_size": batch}),
                (3, 32, 32),
                10,
            )
            for method in ("fedavg", "fedmef")
        }
        for network, stem in CASES
    }


def print_peaks(peaks: dict[str, dict[str, StepCost]]) -> None:
    print(f"\n{'network':28}{'method':10}{'peak':>10}{'ratio':>8}{'resident':>12}{'ratio':>8}{'a step':>10}")
    for network, costs in peaks.items():
        dense = costs["fedavg"]
        for method, cost in costs.items():
            print(
                f"{network:28}{method:10}{cost.peak / 1e6:>7.1f} MB{cost.peak / dense.peak:>8.3f}"
                f"{cost.peak_resident / 1e6:>9.1f} MB{cost.peak_resident / dense.peak_resident:>8.3f}"
                f"{cost.seconds:>8.2f} s"
            )


def plot(rows: list[Measurement], batch: int, file: Path) -> None:
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
    peaks = measure_peaks(arguments.batch)
    if arguments.json:
        steps = {
            network: {method: asdict(cost) for method, cost in costs.items()}
            for network, costs in peaks.items()
        }
        print(json.dumps({"kept": [asdict(row) for row in rows], "steps": steps}))
    else:
        header = f"{'network':28}{'variant':22}{'activations':>14}{'ratio':>8}"
        print(f"{header}{'parameters + gradients':>26}{'ratio':>8}")
        for row in rows:
            dense = next(other for other in rows if other.network == row.network)
            kept = row.activations / dense.activations
            state = row.parameters_and_gradients / dense.parameters_and_gradients
            print(
                f"{row.network:28}{row.variant:22}{row.activations / 1e6:>11.1f} MB{kept:>8.3f}"
                f"{row.parameters_and_gradients / 1e6:>23.1f} MB{state:>8.3f}"
            )
        print_peaks(peaks)
    if arguments.plot:
        plot(rows, arguments.batch, arguments.plot)


if __name__ == "__main__":
    main()
