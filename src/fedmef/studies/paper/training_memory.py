"""What a training step of a study's network needs, measured as in a report."""

from fedmef.costs.tensors import measure_tensors
from fedmef.studies.paper.base import Number, Result

KEPT, PEAK = "kept MB (ours, measured)", "peak MB (ours, measured)"


def memory_cells(result: Result) -> dict[str, Number | None]:
    """Parameters, masks, gradients and what a forward pass keeps; and the peak, an adjustment's included."""
    if not result.runs:
        return {KEPT: None, PEAK: None}
    run = result.runs[0]  # a seed changes no size
    channels, height, width = run.summary.image_shape
    memory = measure_tensors(run.experiment, (channels, height, width), run.summary.classes)
    return {KEPT: Number(memory.kept / 1e6), PEAK: Number(memory.peak / 1e6)}
