"""An engine carries messages: it brings a broadcast to devices and their answers back, nothing else."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from fedmef.device.measured import DeviceReport
from fedmef.errors import FedmefError
from fedmef.wire import MaskMissingError

LONGEST_REASON = 500
MASKS_MISSING = "masks missing: "  # begins the reason, and so travels with it in every engine


@dataclass(frozen=True)
class Lost:
    """A device that gave no answer, and why.

    Attributes:
        traceback: of a device whose code raised an error: when all do, that is no fault but a bug.
    """

    reason: str
    traceback: str = ""

    @classmethod
    def by_raising(cls, device: int, error: Exception) -> "Lost":
        """Call it where the error is caught."""
        reason = str(error) if isinstance(error, FedmefError) else f"{type(error).__name__}: {error}"
        prefix = "" if isinstance(error, FedmefError) else f"device {device} failed: "
        if isinstance(error, MaskMissingError):  # no bug, even if no device has them
            return cls(f"{MASKS_MISSING}{reason}"[:LONGEST_REASON])
        return cls(f"{prefix}{reason}"[:LONGEST_REASON], traceback.format_exc())

    @property
    def masks_missing(self) -> bool:
        """Whether it lacks masks that its message built on: a message with all masks will do."""
        return self.reason.startswith(MASKS_MISSING)

    @classmethod
    def too_late(cls, deadline: float) -> "Lost":
        """No answer within the deadline."""
        return cls(f"no answer within the deadline of {deadline:g} s")


class Engine(Protocol):
    """Used as a context manager: leaving the block releases whatever the engine holds.

    Attributes:
        reports: what the devices that answered the last messages measured of themselves.
    """

    reports: list[DeviceReport]

    def train(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Lost]:
        """Bring each device its message; what each answers, in the order of the messages.

        A device that raises, dies or takes longer than the experiment's `deadline` is `Lost`, and no other.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
