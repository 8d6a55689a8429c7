"""TensorBoard event files of a run, in its own directory: `tensorboard --logdir RUN` opens them."""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedmef.errors import UserError
from fedmef.runs.directory import TENSORBOARD, Record, Run
from fedmef.studies.many import ComparisonWatcher

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def check_tensorboard() -> None:
    """Raise `UserError` when the package is missing, before any training."""
    if find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs the package tensorboard: pip install fedmef[tensorboard]")


class EventFiles:
    """Writes a run's rounds as scalars while it runs. Close it at the end."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._written: set[Path] = set()
        self._writer: SummaryWriter | None = None

    def begin(self, path: Path) -> None:
        """The rounds that follow are those of the run in this directory."""
        self.close()
        self._path = path

    def round_done(self, record: Record) -> None:
        """Write a finished round."""
        if self._writer is None:
            self._write_all()  # this round is in the run's metrics already
        else:
            _write(self._writer, record)

    def close(self) -> None:
        """Flush the current run's file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def write_finished(self, run: Run) -> None:
        """The event files of a run that was finished before and had no more rounds to write."""
        if run.path not in self._written:
            self.begin(run.path)
            self._write_all()
            self.close()

    def _write_all(self) -> None:
        """Begin anew from the run's own metrics: a resumed run has every round once, and no gap."""
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (an extra that may be missing)

        if self._path is None:
            raise RuntimeError("begin() says which run it is")
        self._written.add(self._path)
        shutil.rmtree(self._path / TENSORBOARD, ignore_errors=True)
        self._writer = SummaryWriter(str(self._path / TENSORBOARD))
        for record in Run.open(self._path).metrics:
            _write(self._writer, record)


class WatchersTogether:
    """A comparison that is shown and written down at once."""

    def __init__(self, shown: ComparisonWatcher, events: EventFiles, out: Path) -> None:
        self._shown, self._events, self._out = shown, events, out

    def run_begins(self, name: str) -> None:
        """A run starts or goes on."""
        self._shown.run_begins(name)
        self._events.begin(self._out / name)

    def round_done(self, record: Record) -> None:
        """A round of that run is done."""
        self._shown.round_done(record)
        self._events.round_done(record)


def scalars(record: Record) -> dict[str, float]:
    """What TensorBoard shows of a round; what was not measured in it is not there."""
    before, after = record["accuracy_before_adjustment"], record["accuracy_after_adjustment"]
    values = {
        "train_loss": record["train_loss"],
        "test_accuracy": record["test_accuracy"],
        "learning_rate": record["learning_rate"],
        "bytes/down": record["bytes_down"],
        "bytes/up": record["bytes_up"],
        "drop": before - after if record["adjusted"] and before is not None else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _write(writer: "SummaryWriter", record: Record) -> None:
    for name, value in scalars(record).items():
        writer.add_scalar(name, value, record["round"])
    writer.flush()
