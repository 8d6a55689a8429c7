"""Accuracy against what it costs a device: the memory of its whole process, and its CPU time."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from fedmef.costs.device_process import measure_process
from fedmef.costs.noise import noise_model
from fedmef.errors import UserError
from fedmef.runs.directory import Run
from fedmef.studies.paper.base import Case, Number, Result, Row, Study, accuracy_cells
from fedmef.studies.paper.scales import Scale, settings
from fedmef.studies.paper.table1 import SPARSE_METHODS

METHODS = ("fedavg", *SPARSE_METHODS)
# Widths of the network; the one in the middle also has smaller batches.
WIDTHS: dict[Scale, tuple[int, int, int]] = {
    "smoke": (4, 6, 8),
    "desk": (8, 16, 24),
    "bench": (16, 32, 48),
    "paper": (32, 64, 96),
}
SMALL_BATCH: dict[Scale, int] = {"smoke": 8, "desk": 16, "bench": 16, "paper": 16}

PROCESSES = 5  # the time of a few steps varies
DEVICE = "device.json"  # in a published run: what was measured where it was published


def cases(scale: Scale) -> list[Case]:
    """Every method at every width, and in the middle with smaller batches."""
    usual = settings(scale, "fedmef")["batch_size"]
    points = [(width, usual) for width in WIDTHS[scale]] + [(WIDTHS[scale][1], SMALL_BATCH[scale])]
    return [_case(scale, method, width, batch) for width, batch in points for method in METHODS]


def _case(scale: Scale, method: str, width: int, batch: int) -> Case:
    usual = settings(scale, method)
    rate = usual["learning_rate"] * batch / usual["batch_size"]
    return Case(
        f"{method}-width{width}-batch{batch}",
        {"method": method, "width": width, "batch size": batch},
        settings(scale, method, width=width, batch_size=batch, learning_rate=rate),
    )


@dataclass(frozen=True)
class DeviceCost:
    """What a device of a run needs.

    Attributes:
        backend: what it runs on, native or torch.
        process: the most resident bytes of its whole process.
        milliseconds: CPU time of a training step with one thread, for each of its images.
    """

    backend: str
    process: int
    milliseconds: float

    @classmethod
    def measure(cls, run: Run) -> "DeviceCost":
        """On this machine, in some seconds: the medians of several processes."""
        channels, height, width = run.summary.image_shape
        images = (channels, height, width), run.summary.classes
        model = noise_model(run.experiment, *images)
        costs = [measure_process(run.experiment, *images, model) for _ in range(PROCESSES)]
        seconds = median(cost.seconds for cost in costs)
        process = int(median(cost.process for cost in costs))
        return cls(costs[0].backend, process, round(1000 * seconds / run.experiment.batch_size, 4))

    @classmethod
    def of(cls, run: Run) -> "DeviceCost":
        """As published, or else measured now."""
        file = run.path / DEVICE
        if not file.is_file():
            return cls.measure(run)
        try:
            return cls(**json.loads(file.read_bytes()))
        except (ValueError, TypeError) as error:
            raise UserError(f"{file} is damaged: {error}") from None


def tabulate(results: Sequence[Result]) -> list[Row]:
    """Accuracy next to what one device's process was measured to need."""
    return [{**result.case.labels, **accuracy_cells(result), **_device_cells(result)} for result in results]


def _device_cells(result: Result) -> Row:
    heads = "backend (ours)", "process MB (ours, measured)", "CPU ms per image (ours, measured)"
    if not result.runs:
        return dict.fromkeys(heads)
    cost = DeviceCost.of(result.runs[0])  # a seed changes no size
    cells = cost.backend, Number(cost.process / 1e6, "z.1f"), Number(cost.milliseconds, "z.3f")
    return dict(zip(heads, cells, strict=True))


STUDY = Study(
    name="frontier",
    source="ours",
    title="Accuracy against memory and time",
    shows="No other method is more accurate than FedMef with as little memory, or in as little time.",
    cases=cases,
    tabulate=tabulate,
    remark="Memory is that of a device's whole process. It and the time are those of the machine that "
    "published a run, or are measured now. Smaller batches have a rate that is smaller in proportion.",
)
