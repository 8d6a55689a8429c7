"""Progress of long work on data, on stderr: results alone belong on stdout, and files stay free of bars."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn, track

Item = TypeVar("Item")


def say(line: str) -> None:
    """One line for the user, terminal or not."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(line, markup=False)


def with_progress(items: Sequence[Item], description: str) -> Iterator[Item]:
    """The same items, with a bar while they last if this is a terminal."""
    console = Console(stderr=True)
    yield from track(items, description, console=console, transient=True, disable=not console.is_terminal)


class DownloadBar:
    """What pooch asks of a progress bar, drawn by rich."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("download", total=None)

    @property
    def total(self) -> float | None:
        """Bytes to come; pooch sets it once the server has said it."""
        return self._progress.tasks[self._task].total

    @total.setter
    def total(self, total: int) -> None:
        self._progress.update(self._task, total=total or None)

    def update(self, count: int) -> None:
        """So many bytes more."""
        self._progress.advance(self._task, count)

    def reset(self) -> None:
        """Back to none: pooch does so before it sets the bar to full."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop_task(self._task)


@contextmanager
def download_bar() -> Iterator[DownloadBar]:
    """A bar with bytes, speed and time left."""
    console = Console(stderr=True)
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield DownloadBar(progress)
