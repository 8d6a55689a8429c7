"""What a training step of a study's network needs, measured as in a report."""

from fedmef.report.memory import DeviceMemory, device_memory
from fedmef.studies.base import Result, Row


def kept_megabytes(result: Result) -> float | None:
    """Parameters, masks, gradients, and what a forward pass leaves for the backward pass, in MB."""
    memory = _measured(result)
    return None if memory is None else memory.kept / 1e6


def memory_cells(result: Result) -> Row:
    """That, and the peak of all tensors in a step, an adjustment's included."""
    memory = _measured(result)
    return {
        "kept MB (ours, measured)": None if memory is None else memory.kept / 1e6,
        "peak MB (ours, measured)": None if memory is None else memory.peak / 1e6,
    }


def _measured(result: Result) -> DeviceMemory | None:
    if not result.runs:
        return None
    run = result.runs[0]  # a seed changes no size
    return device_memory(run.experiment, run.summary["classes"], run.summary["image_shape"])
