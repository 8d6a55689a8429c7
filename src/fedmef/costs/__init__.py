"""What a device needs, measured."""

from fedmef.costs.measure import bytes_kept_for_backward, bytes_of_state, peak_of_tensors
from fedmef.costs.step import StepCost, measure_device_memory, measure_step

__all__ = [
    "StepCost",
    "bytes_kept_for_backward",
    "bytes_of_state",
    "measure_device_memory",
    "measure_step",
    "peak_of_tensors",
]
