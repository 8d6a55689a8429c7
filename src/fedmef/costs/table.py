"""A row for each method and sparsity: what the paper's formulas say next to what was measured."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from fedmef.costs.device_process import ProcessCost, measure_process, measure_torch_dense
from fedmef.costs.estimate import Estimate, Setting, estimate, find_terms
from fedmef.costs.exchange import MeasuredExchange
from fedmef.costs.facts import NetworkFacts
from fedmef.costs.tensors import TensorCost, measure_tensors
from fedmef.costs.traffic import FEWEST_IMAGES, measure_exchange
from fedmef.experiment.settings import Experiment


@dataclass(frozen=True)
class Task:
    """What a device trains on: the shape of an image, the classes, and how many images it has."""

    image_shape: tuple[int, int, int]
    classes: int
    samples: int


@dataclass(frozen=True)
class CostRow:
    """One method at one sparsity.

    Attributes:
        sparsity: 0 for dense methods.
        bitmap: estimated, with a bitmap at every density; None for a method of the user's own.
        rule: estimated, with the density rule that the paper's appendix states.
        process: a device's whole process, measured; None when nothing was measured.
        dense: PyTorch's dense device (FedAvg, BatchNorm), likewise.
        exchange: measured, likewise.
        tensors: of a step on PyTorch, by kind; None unless asked for.
    """

    method: str
    sparsity: float
    bitmap: Estimate | None
    rule: Estimate | None
    process: ProcessCost | None = None
    dense: ProcessCost | None = None
    exchange: MeasuredExchange | None = None
    tensors: TensorCost | None = None

    def flat(self) -> dict[str, Any]:
        """Every number by a name that says whether it was estimated or measured; bytes unless named."""
        facts: dict[str, Any] = {"method": self.method, "sparsity": self.sparsity}
        for storage, estimated in (("bitmap", self.bitmap), ("density_rule", self.rule)):
            for name in ("memory", "exchange", "exchange_adjusting"):
                facts[f"estimated_{name}_{storage}"] = getattr(estimated, name, None)
        facts["estimated_flops"] = self.bitmap and self.bitmap.flops
        for name in ("backend", "process", "seconds"):
            facts[f"measured_{name}"] = getattr(self.process, name, None)
        facts["measured_torch_dense_process"] = self.dense and self.dense.process
        for name in MeasuredExchange.__dataclass_fields__:
            facts[f"measured_exchange_{name}"] = getattr(self.exchange, name, None)
        for name in TensorCost.__dataclass_fields__:
            facts[f"measured_tensors_{name}"] = getattr(self.tensors, name, None)
        return facts


def cost_rows(
    experiments: Iterable[Experiment],
    facts: NetworkFacts,
    task: Task,
    *,
    measured: bool,
    tensors: bool = False,
) -> Iterator[CostRow]:
    """The table, row by row; `facts` are those of the experiments' network before a method prepares it."""
    for experiment in experiments:
        setting = Setting.of(experiment, task.samples)
        row = CostRow(
            experiment.method,
            experiment.sparsity,
            estimate(experiment.method, find_terms(facts, setting, "bitmap")),
            estimate(experiment.method, find_terms(facts, setting, "paper")),
        )
        images = task.image_shape, task.classes
        if measured:
            process = measure_process(experiment, *images)
            small = experiment.batch_size < FEWEST_IMAGES
            exchange = measure_exchange(experiment, *images) if small else process.exchange
            row = replace(
                row, process=process, exchange=exchange, dense=measure_torch_dense(experiment, *images)
            )
        yield replace(row, tensors=measure_tensors(experiment, *images)) if tensors else row
