"""Live progress of a run on a terminal; silent anywhere else."""

from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from fedmef.run_directory import Record


class RunProgress:
    """A bar of rounds and a line of what the last one gave. Used as a context manager, fed round by round."""

    def __init__(self, title: str, rounds: int, console: Console) -> None:
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task(title, total=rounds)
        self._accuracy: float | None = None
        self._down = self._up = 0
        self._live = (
            Live(Group(self._bar), console=console, refresh_per_second=4) if console.is_terminal else None
        )

    def round_done(self, record: Record) -> None:
        """Show a finished round."""
        self._accuracy = record["test_accuracy"] if record["test_accuracy"] is not None else self._accuracy
        self._down += record["bytes_down"]
        self._up += record["bytes_up"]
        self._bar.update(self._task, completed=record["round"] + 1)
        if self._live is not None:
            self._live.update(Group(self._bar, Text(self._status(record), style="dim")))

    def _status(self, record: Record) -> str:
        parts = [f"loss {record['train_loss']:.3f}"]
        if self._accuracy is not None:
            parts.append(f"accuracy {self._accuracy:.1%}")
        if record["active_weights"]:
            parts.append(f"active weights {record['active_weights']:,}")
        parts.append(f"down {human_bytes(self._down)}, up {human_bytes(self._up)}")
        if record["adjusted"]:
            parts.append(f"adjusted {record['exchanged_weights']:,} weights")
        return " · ".join(parts)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


def human_bytes(count: float) -> str:
    """`12,345,678` → `12.3 MB`: decimal units, as the paper uses."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
