"""Why a device gave no answer, as text that travels between processes."""

import json
import traceback
from dataclasses import asdict, dataclass

from fedmef.errors import FedmefError, NotHeldError

LONGEST_REASON = 500
NEEDS_ALL = 75  # exit code of a device's program: a message with everything would do
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
        if isinstance(error, MemoryError):  # no bug either
            return cls(f"device {device} is out of memory")
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
