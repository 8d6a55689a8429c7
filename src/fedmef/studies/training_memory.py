"""What one training step of a study's network keeps alive, measured as in a report."""

from fedmef.report.memory import device_memory
from fedmef.studies.base import Result


def training_megabytes(result: Result) -> float | None:
    """Parameters, masks, gradients, and what a forward pass leaves for the backward pass, in MB."""
    if not result.runs:
        return None
    run = result.runs[0]  # a seed changes no size
    return device_memory(run.experiment, run.summary["classes"], run.summary["image_shape"]).kept / 1e6
