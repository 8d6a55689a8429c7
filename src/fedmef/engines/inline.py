"""The engine without processes: devices train one after the other, here."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from fedmef.engines.base import Lost
from fedmef.engines.fleet import Fleet


class InlineEngine:
    """All devices in this process."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def train(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Lost]:
        """What each device answers to its message."""
        return {device: self.fleet.train(device, message) for device, message in messages.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
