"""Accuracy against what a device gives for it: its whole process's memory, and its CPU's seconds."""

from collections.abc import Sequence

from fedmef.costs.device_process import measure_process
from fedmef.studies.paper.base import Case, Number, Result, Row, Study, accuracy_cells
from fedmef.studies.paper.scales import Scale, settings
from fedmef.studies.paper.table1 import SPARSE_METHODS

# Widths of the network; the one in the middle also with smaller batches.
WIDTHS: dict[Scale, tuple[int, int, int]] = {
    "smoke": (4, 6, 8),
    "desk": (8, 16, 24),
    "bench": (16, 32, 48),
    "paper": (32, 64, 96),
}
BATCHES: dict[Scale, tuple[int, ...]] = {"smoke": (8,), "desk": (16,), "bench": (16,), "paper": (16,)}
METHODS = ("fedavg", *SPARSE_METHODS)
PROCESS, TIME = "process MB (ours, measured)", "CPU ms an image (ours, measured)"


def cases(scale: Scale) -> list[Case]:
    """Every method at every width, and in the middle with every batch size."""
    usual = settings(scale, "fedmef")["batch_size"]
    points = [(width, usual) for width in WIDTHS[scale]]
    points += [(WIDTHS[scale][1], batch) for batch in BATCHES[scale]]
    return [_case(scale, method, width, batch) for width, batch in points for method in METHODS]


def _case(scale: Scale, method: str, width: int, batch: int) -> Case:
    usual = settings(scale, method)
    rate = usual["learning_rate"] * batch / usual["batch_size"]
    return Case(
        f"{method}-width{width}-batch{batch}",
        {"method": method, "width": width, "batch size": batch},
        settings(scale, method, width=width, batch_size=batch, learning_rate=rate),
    )


def tabulate(results: Sequence[Result]) -> list[Row]:
    """Accuracy next to what one device's process was measured to need."""
    return [{**result.case.labels, **accuracy_cells(result), **device_cells(result)} for result in results]


def device_cells(result: Result) -> dict[str, Number | None]:
    """The process's peak, and the CPU time of a training step with one thread, for each of its images."""
    if not result.runs:
        return {PROCESS: None, TIME: None}
    run = result.runs[0]  # a seed changes no size
    channels, height, width = run.summary.image_shape
    cost = measure_process(run.experiment, (channels, height, width), run.summary.classes)
    return {
        PROCESS: Number(cost.process / 1e6, "z.1f"),
        TIME: Number(1000 * cost.seconds / run.experiment.batch_size, "z.3f"),
    }


STUDY = Study(
    name="frontier",
    source="ours",
    title="Accuracy against memory and time",
    shows="No other method is more accurate than FedMef with as little memory, or in as little time.",
    cases=cases,
    tabulate=tabulate,
    remark="Memory is that of a device's whole process, measured now, on this machine, as is the time. "
    "Smaller batches have a learning rate that is smaller in proportion.",
)
