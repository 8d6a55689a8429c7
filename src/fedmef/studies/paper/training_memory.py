"""What a training step of a study's network needs, measured as in a report."""

from collections.abc import Sequence

from fedmef.costs.tensors import measure_tensors
from fedmef.studies.paper.base import Number, Result, Row, accuracy_cells

KEPT, PEAK = "kept MB (ours, measured)", "peak MB (ours, measured)"


def memory_cells(result: Result) -> dict[str, Number | None]:
    """Parameters, masks, gradients and what a forward pass keeps; and the peak, an adjustment's included."""
    if not result.runs:
        return {KEPT: None, PEAK: None}
    run = result.runs[0]  # a seed changes no size
    channels, height, width = run.summary.image_shape
    memory = measure_tensors(run.experiment, (channels, height, width), run.summary.classes)
    return {KEPT: Number(memory.kept / 1e6), PEAK: Number(memory.peak / 1e6)}


def accuracies_and_memory(results: Sequence[Result]) -> list[Row]:
    """A row for each case: accuracy and memory of a device's training step, next to what the paper has."""
    return [
        {**result.case.labels, **accuracy_cells(result), **memory_cells(result), **result.case.paper}
        for result in results
    ]
