"""Bytes of the messages between the server and one device, in an ordinary round and in one that adjusts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasuredExchange:
    """Lengths of messages, down to a device and up from it.

    Of a device that holds no masks or network of earlier rounds, which is the most that a round takes.

    Attributes:
        down, up: in a round that does not adjust.
        down_adjusting, up_adjusting: in one that does; None when the method, or its schedule, has none.
    """

    down: int
    up: int
    down_adjusting: int | None
    up_adjusting: int | None

    @property
    def ordinary(self) -> int:
        """Down and up, in a round that does not adjust."""
        return self.down + self.up

    @property
    def adjusting(self) -> int:
        """Down and up at the most: in a round that adjusts, if there is one."""
        if self.down_adjusting is None or self.up_adjusting is None:
            return self.ordinary
        return self.down_adjusting + self.up_adjusting
