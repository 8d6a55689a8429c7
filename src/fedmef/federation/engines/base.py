"""An engine carries messages: it brings a broadcast to devices and their answers back, nothing else."""

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from fedmef.device.lost import Lost

if TYPE_CHECKING:  # a device of a fleet comes by here, and has no need of records
    from fedmef.runs.records import DeviceReport, Failed

__all__ = ["Engine", "Lost"]


class Engine(Protocol):
    """Used as a context manager: leaving the block releases whatever the engine holds.

    Attributes:
        reports: what the devices that answered the last messages measured of themselves, or why that is not
            to be believed.
    """

    reports: "list[DeviceReport | Failed]"

    def train(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Lost]:
        """Bring each device its message; what each answers, in the order of the messages.

        A device that raises, dies or takes longer than the experiment's `deadline` is `Lost`, and no other.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
