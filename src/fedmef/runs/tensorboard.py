"""TensorBoard event files of a run, in its own directory: `tensorboard --logdir RUN` opens them."""

import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fedmef.errors import UserError
from fedmef.experiment.names import load_part
from fedmef.runs.callbacks import Callback
from fedmef.runs.directory import TENSORBOARD, Run
from fedmef.runs.lock import locked
from fedmef.runs.records import Round

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def check_tensorboard() -> None:
    """Raise `UserError` when the package is missing, before any training."""
    if find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'fedmef[tensorboard]'")


class EventFiles(Callback):
    """Writes a run's rounds as scalars while it runs."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._writer: SummaryWriter | None = None

    def run_begins(self, run: Run) -> None:
        self.close()
        self._run = run

    def round_done(self, record: Round, model: object = None) -> None:
        if self._writer is None:
            assert self._run is not None
            self._write_all(self._run.rounds)  # this round is in the run's metrics already
        else:
            self._write(record)

    def run_ends(self, run: Run) -> None:
        self.close()

    def close(self) -> None:
        """Flush the current run's file, also when the run was stopped."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def write_finished(self, run: Run) -> None:
        """The event files of a run that was finished before and had no more rounds to write."""
        with locked(run.path):
            run.prepare_writing()
            self.run_begins(run)
            self._write_all(run.rounds)
            self.close()

    def _write_all(self, rounds: list[Round]) -> None:
        """Start with the run's own metrics: a resumed run has every round once, and no gap."""
        assert self._run is not None
        folder = self._run.path / TENSORBOARD
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = load_part("torch.utils.tensorboard", "SummaryWriter")(str(folder))
        for record in rounds:
            self._write(record)

    def _write(self, record: Round) -> None:
        assert self._writer is not None
        for name, value in record.scalars().items():
            self._writer.add_scalar(name, value, record.round)
        self._writer.flush()
