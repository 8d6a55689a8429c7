"""The engine without processes: devices train one after the other, here.

A device that hangs cannot be interrupted here; one that ends after the deadline is lost like in any engine.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from fedmef.device.measured import measured
from fedmef.errors import NoAnswerError
from fedmef.federation.engines.base import Lost
from fedmef.federation.simulated.fleet import Fleet
from fedmef.runs.records import DeviceReport, Failed


class InlineEngine:
    """All devices in this process."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.reports: list[DeviceReport | Failed] = []

    def train(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Lost]:
        """What each device answers to its message."""
        self.reports = []
        return {device: self._train(device, message) for device, message in messages.items()}

    def _train(self, device: int, message: bytes) -> bytes | Lost:
        deadline = self.fleet.experiment.deadline
        try:
            with measured() as costs:
                answer = self.fleet.train(device, message)
        except NoAnswerError as reason:
            return Lost(str(reason))
        except Exception as error:  # whatever a device's code raises costs its own update only
            return Lost.by_raising(device, error)
        if deadline is not None and costs.seconds > deadline:
            return Lost.too_late(deadline)
        self.reports.append(
            DeviceReport(
                device=device,
                seconds=costs.seconds,
                peak_memory=costs.peak_memory,
                bytes_down=len(message),
                bytes_up=len(answer),
            )
        )
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
