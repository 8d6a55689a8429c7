"""What a device needs, measured."""

from fedmef.costs.measure import bytes_kept_for_backward, bytes_of_state

__all__ = ["bytes_kept_for_backward", "bytes_of_state"]
