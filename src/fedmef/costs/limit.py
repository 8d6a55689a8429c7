"""A memory limit that holds: refuses, before training, an experiment whose device does not fit."""

from collections.abc import Callable

from fedmef.costs.device_process import Shape, measure_process
from fedmef.costs.units import human_bytes
from fedmef.device.choice import missing_kernels
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment

MARGIN = 0.05  # of the limit stays free, for what differs between a measured round and a real one

Tell = Callable[[str], None]  # what is being measured now, for a person who waits


def check_device_memory(experiment: Experiment, shape: Shape, classes: int, tell: Tell) -> None:
    """Raise `UserError` when a device, measured, needs more than `device_memory`."""
    limit = experiment.device_memory
    if limit is None:
        return
    tell("measuring what a device needs")
    needed = measure_process(experiment, shape, classes)
    if needed.process > (1 - MARGIN) * limit:
        raise UserError(
            f"device_memory = {human_bytes(limit)}: a device of this experiment needs "
            f"{human_bytes(needed.process)} (measured: its whole process on the {needed.backend} backend; "
            f"{MARGIN:.0%} of the limit stay free); "
            + (missing_kernels() or "'fedmef plan' finds settings that fit")
        )
