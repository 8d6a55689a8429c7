"""Live progress of a run, or of many, on a terminal; anywhere else a line every half minute."""

import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from fedmef.costs.units import counted, human_bytes
from fedmef.errors import printable
from fedmef.runs.callbacks import Callback
from fedmef.runs.directory import Run
from fedmef.runs.records import Round

LINE_EVERY = 30  # seconds, where there is no terminal


class RunProgress(Callback):
    """A bar of rounds and a line of what the last one gave, from the run's beginning to the block's end."""

    def __init__(self, console: Console, every: float | None = None) -> None:
        self._waiting = Waiting(console, every)
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
        self._task = self._bar.add_task("", visible=False)
        self._accuracy: float | None = None
        self._down = self._up = 0
        self._title, self._rounds_of_run = "", 0
        self._live = (
            Live(Group(self._bar), console=console, refresh_per_second=4) if console.is_terminal else None
        )

    def tell(self, words: str) -> None:
        """Say what is being waited for, before the run begins."""
        self._waiting.tell(words)

    def run_begins(self, run: Run) -> None:
        before, experiment = run.finished_rounds(), run.experiment
        self._show_run(f"{experiment.method} on {experiment.dataset}", experiment.rounds, before)

    def round_done(self, record: Round, model: object = None) -> None:
        self._accuracy = record.test_accuracy if record.test_accuracy is not None else self._accuracy
        self._down += record.bytes_down
        self._up += record.bytes_up
        self._bar.update(self._task, completed=record.number)
        if self._live is None:
            done = f"{record.number} of {self._rounds_of_run} rounds"
            self._waiting.tell(f"{self._title}: {done}, {self._status(record)}")
        else:
            self._live.update(Group(self._bar, Text(self._status(record), style="dim")))

    def _show_run(self, title: str, rounds: int, before: Sequence[Round]) -> None:
        shown = escape(printable(title))
        self._bar.reset(self._task, total=rounds, completed=len(before), description=shown, visible=True)
        self._accuracy = None
        self._down = sum(record.bytes_down for record in before)
        self._up = sum(record.bytes_up for record in before)
        self._title, self._rounds_of_run = title, rounds
        if self._live is None:
            self._waiting.tell(f"{title}: {len(before)} of {rounds} rounds")
        else:
            self._waiting.stop()
            self._live.start()
            self._live.update(Group(self._bar))  # the line was the last run's

    def _status(self, record: Round) -> str:
        loss = record.train_loss
        parts = ["loss is not finite" if loss is None else f"loss {loss:.3f}"]
        if self._accuracy is not None:
            parts.append(f"accuracy {self._accuracy:.1%}")
        if record.active_weights:
            parts.append(f"active weights {record.active_weights:,}")
        parts.append(f"down {human_bytes(self._down)}, up {human_bytes(self._up)}")
        if record.epsilon is not None:
            parts.append(f"ε {record.epsilon:.2f}")
        for failed, what in ((record.lost, "lost"), (record.rejected, "rejected")):
            if failed:
                parts.append(f"{counted(len(failed), 'update')} {what}")
        if record.adjusted and record.exchanged_weights is not None:
            parts.append(f"adjusted {counted(record.exchanged_weights, 'weight')}")
        return " · ".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.stop()
        if self._live is not None:
            self._live.stop()


class ManyRunsProgress(RunProgress):
    """A bar of all rounds of many runs, above the bar and the line of the current one."""

    def __init__(self, rounds: Mapping[str, tuple[int, int]], console: Console) -> None:
        """For every run, by the name of its directory, the rounds that were done before, and all of them."""
        super().__init__(console)
        self._bar.remove_task(self._task)
        to_do = sum(of - done for done, of in rounds.values())
        self._all = self._bar.add_task(counted(len(rounds), "run"), total=to_do)
        self._task = self._bar.add_task("", visible=False)
        self._rounds = rounds
        self._rounds_before = 0
        if not rounds:
            self._live = None

    def run_begins(self, run: Run) -> None:
        """It may begin in the middle, or the last one have failed."""
        names = list(self._rounds)
        number = names.index(run.path.name)
        earlier = sum(of - done for done, of in list(self._rounds.values())[:number])
        self._bar.update(self._all, description=f"run {number + 1} of {len(names)}", completed=earlier)
        before = run.finished_rounds()
        self._rounds_before = earlier - len(before)
        self._show_run(run.path.name, run.experiment.rounds, before)

    def round_done(self, record: Round, model: object = None) -> None:
        super().round_done(record)
        self._bar.update(self._all, completed=self._rounds_before + record.number)


class Waiting:
    """What is being waited for: a line on a terminal, and anywhere else a new line every half minute.

    Work that is done sooner says nothing there.
    """

    def __init__(self, console: Console, every: float | None = None) -> None:
        self._console = console
        self._every = LINE_EVERY if every is None else every
        self._status = console.status("") if console.is_terminal else None
        self._words, self._begun = "", time.monotonic()
        self._over: threading.Event | None = None

    def tell(self, words: str) -> None:
        """Show these words from now on."""
        self._words = words
        if self._status is not None:
            self._status.start()
            self._status.update(escape(printable(f"{words} …")))
        elif self._over is None:
            self._over = threading.Event()
            threading.Thread(target=self._repeat, args=(self._over,), daemon=True).start()

    def stop(self) -> None:
        """Take the line away, or say no more."""
        if self._status is not None:
            self._status.stop()
        if self._over is not None:
            self._over.set()
            self._over = None

    def _repeat(self, over: threading.Event) -> None:
        while not over.wait(self._every):
            seconds = time.monotonic() - self._begun
            line = printable(f"fedmef: {self._words} ({seconds:.0f} s)")
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
