"""The engine without processes: devices train one after the other, here."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from fedmef.engines.fleet import Fleet


class InlineEngine:
    """All devices in this process."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def train(self, devices: Sequence[int], message: bytes) -> list[bytes]:
        """The answers of these devices, in their order."""
        return [self.fleet.train(device, message) for device in devices]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
