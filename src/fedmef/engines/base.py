"""An engine carries messages: it brings a broadcast to devices and their answers back, nothing else."""

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self


class Engine(Protocol):
    """Used as a context manager: leaving the block releases whatever the engine holds."""

    def train(self, devices: Sequence[int], message: bytes) -> list[bytes]:
        """The answers of these devices, in their order."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
