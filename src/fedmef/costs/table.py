"""A row for each method and sparsity: what the paper's formulas say next to what was measured."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from fedmef.costs.estimate import Estimate, Setting, estimate, find_terms
from fedmef.costs.facts import NetworkFacts
from fedmef.costs.step import StepCost, measure_step
from fedmef.costs.traffic import MeasuredExchange, measure_exchange
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
        step: measured; None when nothing was measured.
        exchange: measured; None when nothing was measured.
    """

    method: str
    sparsity: float
    bitmap: Estimate | None
    rule: Estimate | None
    step: StepCost | None
    exchange: MeasuredExchange | None

    def flat(self) -> dict[str, Any]:
        """Every number by a name that says whether it was estimated or measured; bytes unless named."""
        facts: dict[str, Any] = {"method": self.method, "sparsity": self.sparsity}
        for storage, estimated in (("bitmap", self.bitmap), ("density_rule", self.rule)):
            for name in ("memory", "exchange", "exchange_adjusting"):
                facts[f"estimated_{name}_{storage}"] = getattr(estimated, name, None)
        facts["estimated_flops"] = self.bitmap and self.bitmap.flops
        step = asdict(self.step) if self.step else dict.fromkeys(StepCost.__dataclass_fields__)
        exchange = (
            asdict(self.exchange) if self.exchange else dict.fromkeys(MeasuredExchange.__dataclass_fields__)
        )
        facts |= {f"measured_{name}": value for name, value in step.items()}
        return facts | {f"measured_exchange_{name}": value for name, value in exchange.items()}


def cost_rows(
    experiments: Iterable[Experiment], facts: NetworkFacts, task: Task, *, measured: bool
) -> Iterator[CostRow]:
    """The table, row by row; `facts` are those of the experiments' network before a method prepares it."""
    for experiment in experiments:
        setting = Setting.of(experiment, task.samples)
        yield CostRow(
            experiment.method,
            experiment.sparsity,
            estimate(experiment.method, find_terms(facts, setting, "bitmap")),
            estimate(experiment.method, find_terms(facts, setting, "paper")),
            measure_step(experiment, task.image_shape, task.classes) if measured else None,
            measure_exchange(experiment, task.image_shape, task.classes) if measured else None,
        )
