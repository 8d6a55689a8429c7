"""What a device needs: the paper's estimates, and beside them what was measured."""

from fedmef.costs.measure import bytes_kept_for_backward

__all__ = ["bytes_kept_for_backward"]
