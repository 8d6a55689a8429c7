"""What a device needs, measured."""

from fedmef.costs.measure import bytes_kept_for_backward

__all__ = ["bytes_kept_for_backward"]
