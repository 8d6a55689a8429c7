"""An engine carries messages: it brings a broadcast to devices and their answers back, nothing else."""

import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Protocol, Self

from fedmef.errors import FedmefError, NotHeldError
from fedmef.runs.records import DeviceReport

LONGEST_REASON = 500
LONGEST_TRACE = 20_000


@dataclass(frozen=True)
class Lost:
    """A device that gave no answer, and why.

    Attributes:
        traceback: of a device whose code raised an error: when all do, that is no fault but a bug.
        needs_all: it lacks masks or a network that its message built on: a message with all of it will do.
    """

    reason: str
    traceback: str = ""
    needs_all: bool = False

    @classmethod
    def by_raising(cls, device: int, error: Exception) -> "Lost":
        """Call it where the error is caught."""
        if isinstance(error, NotHeldError):  # no bug, even if no device holds them
            return cls(str(error)[:LONGEST_REASON], needs_all=True)
        reason = str(error) if isinstance(error, FedmefError) else f"{type(error).__name__}: {error}"
        prefix = "" if isinstance(error, FedmefError) else f"device {device} failed: "
        return cls(f"{prefix}{reason}"[:LONGEST_REASON], traceback.format_exc())

    @classmethod
    def too_late(cls, deadline: float) -> "Lost":
        """No answer within the deadline."""
        return cls(f"no answer within the deadline of {deadline:g} s")

    def to_text(self) -> str:
        """As it travels from a device's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Lost":
        """The inverse; text of any other kind is a reason."""
        try:
            table = json.loads(text)
            reason, trace = str(table["reason"]), str(table["traceback"])
            needs_all = table["needs_all"] is True
        except (ValueError, KeyError, TypeError, RecursionError):
            return cls(text[:LONGEST_REASON])
        return cls(reason[:LONGEST_REASON], trace[-LONGEST_TRACE:], needs_all)


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
