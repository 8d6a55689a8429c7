"""Live progress of a run, or of many, on a terminal; silent anywhere else."""

from collections.abc import Mapping, Sequence
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

from fedmef.runs.directory import Record


class RunProgress:
    """A bar of rounds and a line of what the last one gave. Used as a context manager, fed round by round."""

    def __init__(self, title: str, rounds: int, console: Console, before: Sequence[Record] = ()) -> None:
        """`before` are the records of rounds that a resumed run already has."""
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=86_400,  # rich looks back 30 s, in which a round may not end
        )
        self._task = self._bar.add_task(title, total=rounds, completed=len(before))
        self._accuracy: float | None = None
        self._down = sum(record["bytes_down"] for record in before)
        self._up = sum(record["bytes_up"] for record in before)
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
        loss = record["train_loss"]
        parts = ["loss is not finite" if loss is None else f"loss {loss:.3f}"]
        if self._accuracy is not None:
            parts.append(f"accuracy {self._accuracy:.1%}")
        if record["active_weights"]:
            parts.append(f"active weights {record['active_weights']:,}")
        parts.append(f"down {human_bytes(self._down)}, up {human_bytes(self._up)}")
        if record.get("epsilon") is not None:
            parts.append(f"ε {record['epsilon']:.2f}")
        for failed in ("lost", "rejected"):
            if record.get(failed):
                parts.append(f"{len(record[failed])} updates {failed}")
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


class ComparisonProgress(RunProgress):
    """A bar of all rounds of many runs, above the bar and the line of the current one."""

    def __init__(self, rounds: Mapping[str, tuple[int, int]], console: Console) -> None:
        """Of every run the rounds that were done before, and all of them."""
        to_do = sum(of - done for done, of in rounds.values())
        super().__init__(f"{len(rounds)} runs", to_do, console)
        self._rounds = rounds
        self._all = self._task
        self._task = self._bar.add_task("", visible=False)
        self._rounds_before = 0
        if not rounds:
            self._live = None

    def run_begins(self, name: str) -> None:
        """Show that this run is the current one; it may begin in the middle, or the last one have failed."""
        names = list(self._rounds)
        number = names.index(name)
        earlier = sum(of - done for done, of in list(self._rounds.values())[:number])
        self._bar.update(self._all, description=f"run {number + 1} of {len(names)}", completed=earlier)
        done, of = self._rounds[name]
        self._rounds_before = earlier - done
        self._bar.reset(self._task, total=of, completed=done, description=name, visible=True)
        self._accuracy, self._down, self._up = None, 0, 0
        if self._live is not None:
            self._live.update(Group(self._bar))  # the line was the last run's

    def round_done(self, record: Record) -> None:
        """Show a finished round of the current run."""
        super().round_done(record)
        self._bar.update(self._all, completed=self._rounds_before + record["round"] + 1)


def byte_unit(largest: float) -> tuple[float, str]:
    """The unit in which a column of such numbers is shown: its size and its name."""
    for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= size:
            return size, name
    return 1, "B"


def in_unit(count: float, size: float) -> str:
    """A number of such a column: no digit too many, and none that makes it 0."""
    share = count / size
    return f"{share:.0f}" if size == 1 else f"{share:.1f}" if share >= 1 else f"{share:.2g}"


def human_bytes(count: float) -> str:
    """`12,345,678` → `12.3 MB`: decimal units, as the paper uses."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
