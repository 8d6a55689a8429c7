"""The engine without processes: devices train one after the other, here."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from fedmef.engines.base import Lost
from fedmef.engines.fleet import Fleet
from fedmef.engines.reports import DeviceReport, measured


class InlineEngine:
    """All devices in this process."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.reports: list[DeviceReport] = []

    def train(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Lost]:
        """What each device answers to its message."""
        answers: dict[int, bytes | Lost] = {}
        self.reports = []
        for device, message in messages.items():
            answers[device], report = measured(self.fleet.train, device, message)
            self.reports.append(report)
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
