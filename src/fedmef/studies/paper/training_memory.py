"""What a training step of a study's network needs, measured as in a report."""

from fedmef.costs.memory import device_memory
from fedmef.studies.paper.base import Result

KEPT, PEAK = "kept MB (ours, measured)", "peak MB (ours, measured)"


def memory_cells(result: Result) -> dict[str, float | None]:
    """Parameters, masks, gradients and what a forward pass keeps; and the peak, an adjustment's included."""
    if not result.runs:
        return {KEPT: None, PEAK: None}
    run = result.runs[0]  # a seed changes no size
    memory = device_memory(run.experiment, run.summary["classes"], run.summary["image_shape"])
    return {KEPT: memory.kept / 1e6, PEAK: memory.peak / 1e6}
