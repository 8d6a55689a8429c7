"""Appendix figure: outputs of every convolution of a sparse ResNet18, with and without normalisation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedmef.federation import api, preparation
from fedmef.methods.base import Recipe
from fedmef.methods.fedmef import FedMef
from fedmef.nn import BatchNorm2d, SparseConv2d
from fedmef.runs.directory import Run
from fedmef.studies.paper.base import Case, Number, Result, Row, Study
from fedmef.studies.paper.scales import Scale, settings

IMAGES = 64


class WithoutNormalization(FedMef):
    """FedMef on a network that nothing normalises: neither BatchNorm nor NSConv."""

    recipe = Recipe(norm="none", prune_activations=True)


METHODS = {
    "BatchNorm": "fedmef_no_sap",
    "no norm": f"{__name__}:{WithoutNormalization.__name__}",
    "NSConv": "fedmef",
}


def cases(scale: Scale) -> list[Case]:
    """FedMef with each kind of normalisation."""
    slow: dict[str, Any] = {"learning_rate": 0.01}  # without normalisation larger steps diverge
    return [
        Case(
            kind.replace(" ", "-"),
            {"normalisation": kind},
            settings(scale, method, model="resnet18", **(slow if kind == "no norm" else {})),
        )
        for kind, method in METHODS.items()
    ]


def tabulate(results: Sequence[Result]) -> list[Row]:
    """A row for each convolution: mean and standard deviation of its outputs, of every kind of network."""
    found = {
        str(result.case.labels["normalisation"]): output_statistics(result.runs[0])
        for result in results
        if result.runs
    }
    names = dict.fromkeys(name for layers in found.values() for name in layers)
    rows: list[Row] = []
    for name in names:
        row: Row = {"convolution": name}
        for kind, layers in found.items():
            mean, deviation = layers.get(name, (None, None))
            row |= {f"mean ({kind})": Number.of(mean, ".3g"), f"std ({kind})": Number.of(deviation, ".3g")}
        rows.append(row)
    return rows


def output_statistics(run: Run) -> dict[str, tuple[float, float]]:
    """Mean and deviation of what every convolution of the final network gives, on a batch of test images.

    Under BatchNorm, what counts is what BatchNorm makes of it.
    """
    model = api.load(run.path)
    dataset = preparation.open_dataset(run.experiment)
    outputs: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, output: Tensor) -> None:
        if isinstance(module, BatchNorm2d):
            name = next(reversed(outputs))  # it stands right behind its convolution
        outputs[name] = output

    for name, module in model.named_modules():
        if isinstance(module, (SparseConv2d, nn.Conv2d, BatchNorm2d)):
            module.register_forward_hook(lambda module, _, output, name=name: keep(name, module, output))
    with torch.no_grad():
        model(torch.from_numpy(dataset.test.images[:IMAGES]))
    return {name: (float(output.mean()), float(output.std())) for name, output in outputs.items()}


STUDY = Study(
    name="activation_histogram",
    source="figures of convolution outputs",
    title="Outputs of every convolution (ResNet18)",
    shows="With NSConv outputs are centred and of one width, as under BatchNorm; without either they shift "
    "and shrink with depth. The paper draws histograms.",
    cases=cases,
    remark="Without normalisation the learning rate is 0.01: larger steps diverge.",
    tabulate=tabulate,
)
