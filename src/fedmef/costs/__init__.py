"""What a device needs, measured."""

from fedmef.costs.measure import bytes_kept_for_backward, bytes_of_state, peak_of_tensors
from fedmef.costs.step import StepCost, measure_peak_resident, measure_step

__all__ = [
    "StepCost",
    "bytes_kept_for_backward",
    "bytes_of_state",
    "measure_peak_resident",
    "measure_step",
    "peak_of_tensors",
]
