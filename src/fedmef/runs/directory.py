"""A run is a directory: it can be read, reported on, resumed and evaluated, and nothing else is needed.

config.toml              the experiment
metrics.jsonl            a line a round
checkpoint.safetensors   the model after the last finished round, and which masks the devices hold
checkpoint-before        the same after the round before
masks/                   while it runs: the masks that the devices hold
summary.json             written last: its presence says that the run is finished
model.safetensors        the final model, sparse
tensorboard/             event files, when they were asked for
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from fedmef.errors import FedmefError, UserError
from fedmef.experiment.settings import Experiment, read_experiment
from fedmef.runs import checkpoints
from fedmef.runs.checkpoints import CHECKPOINT, CHECKPOINT_BEFORE, has_checkpoint, remove_checkpoints
from fedmef.wire import MAXIMUM_BYTES, MaskMemory, MessageError, decode, encode
from fedmef.wire.files import left_behind, read_bounded, write_atomically

CONFIG, METRICS, SUMMARY, MODEL = "config.toml", "metrics.jsonl", "summary.json", "model.safetensors"
TENSORBOARD, MASKS = "tensorboard", "masks"
LEDGER = "ledger/"  # in a checkpoint, before the names of what is not the model's
FILES = (SUMMARY, MODEL, CHECKPOINT, CHECKPOINT_BEFORE, METRICS, CONFIG)
MAXIMUM_TEXT_BYTES = 2**30  # of metrics or a summary

# What a summary must have to be shown.
SUMMARY_FIELDS = frozenset(
    {
        "test_accuracy",
        "best_test_accuracy",
        "parameters",
        "parameters_if_dense",
        "rounds",
        "adjustments",
        "bytes_down",
        "bytes_up",
        "seconds",
        "classes",
        "image_shape",
    }
)

Record = dict[str, Any]


class Run:
    """A run's directory, open for writing rounds or for reading."""

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.path = path
        self.experiment = experiment

    @classmethod
    def create(cls, path: Path, experiment: Experiment, *, overwrite: bool = False) -> "Run":
        """A new run in an empty or missing directory, or in place of an old run."""
        cls.check_free(path, overwrite=overwrite)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the directory {path}: {error.strerror}") from None
        run = cls(path, experiment)
        run.prepare_writing()
        for name in FILES:
            (path / name).unlink(missing_ok=True)
        for name in (TENSORBOARD, MASKS):
            shutil.rmtree(path / name, ignore_errors=True)
        run.write_config()
        return run

    @staticmethod
    def check_free(path: Path, *, overwrite: bool = False) -> None:
        """Raise `UserError` when a new run must not go there; a run with no finished round is no obstacle."""
        if not path.exists() or (path.is_dir() and set(path.iterdir()) <= set(left_behind(path, FILES))):
            return
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} exists and is not a run; choose another directory")
        if not overwrite and ((path / SUMMARY).exists() or has_checkpoint(path)):
            raise UserError(
                f"{path} holds a run already; choose another directory, overwrite it (--overwrite) or "
                "resume it (--resume)"
            )

    @classmethod
    def open(cls, path: Path) -> "Run":
        """An existing run; damage is noticed where it is read."""
        if not path.is_dir():
            raise UserError(f"there is no run directory {path}")
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is not a run directory: it has no {CONFIG}")
        experiment = read_experiment(path / CONFIG)
        if experiment.data_dir is not None and not experiment.data_dir.is_dir():
            # A run from elsewhere must not make folders here, not even for a download.
            experiment = experiment.model_copy(update={"data_dir": None})
        return cls(path, experiment)

    @staticmethod
    def mask_memory(path: Path, experiment: Experiment) -> MaskMemory | None:
        """Where the devices of a run at this path keep masks, if they do."""
        return MaskMemory(path / MASKS) if experiment.remember_masks else None

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / SUMMARY).is_file()

    @property
    def metrics(self) -> list[Record]:
        """What was logged, a record a round."""
        file = self.path / METRICS
        try:
            text = read_bounded(file, MAXIMUM_TEXT_BYTES).decode() if file.exists() else ""
            return [json.loads(line) for line in text.splitlines()]
        except (ValueError, OSError) as error:
            raise UserError(f"{file} is damaged: {error}") from None

    @property
    def summary(self) -> Record:
        """The run's result."""
        file = self.path / SUMMARY
        if not file.is_file():
            raise UserError(f"{self.path} is not finished; fedmef run --resume {self.path} goes on with it")
        try:
            summary = json.loads(read_bounded(file, MAXIMUM_TEXT_BYTES))
        except (ValueError, OSError) as error:
            raise UserError(f"{file} is damaged: {error}") from None
        if not isinstance(summary, dict) or not summary.keys() >= SUMMARY_FIELDS:
            raise UserError(f"{file} is damaged: it is not a run's summary")
        return summary

    def prepare_writing(self) -> None:
        """Remove what a killed process left; raises `UserError` for a link, which may lead out of here."""
        for name in (*FILES, TENSORBOARD, MASKS):
            if (self.path / name).is_symlink():
                raise UserError(
                    f"{self.path / name} is a symbolic link: a run writes into its own directory only; "
                    "put the file itself there"
                )
        for file in left_behind(self.path, FILES):
            file.unlink(missing_ok=True)

    def write_config(self) -> None:
        """Write the experiment down."""
        with self._writing():
            write_atomically(self.path / CONFIG, self.experiment.to_toml().encode())

    def log(self, record: Record) -> None:
        """Append a round."""
        with self._writing(), (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # the checkpoint that follows must not be ahead of its metrics

    def write_checkpoint(
        self, state: Mapping[str, Tensor], next_round: int, ledger: Mapping[str, Tensor] | None = None
    ) -> None:
        """What resuming needs; everything random derives from the seed and the round."""
        tensors = {**state, **{LEDGER + name: tensor for name, tensor in (ledger or {}).items()}}
        with self._writing():
            checkpoints.write_checkpoint(self.path, tensors, {"next_round": next_round})

    def read_checkpoint(self) -> tuple[dict[str, Tensor], int, dict[str, Tensor]] | None:
        """The model, the round to go on with and the ledger, or None when no round was finished.

        Rounds that were logged after the checkpoint are forgotten: they will be run again.
        """
        self.prepare_writing()
        kept = self.finished_rounds()
        checkpoint = checkpoints.read_checkpoint(self.path)
        lines = "".join(json.dumps(record) + "\n" for record in kept)
        with self._writing():
            checkpoints.discard_torn(self.path)
            write_atomically(self.path / METRICS, lines.encode())
        if checkpoint is None:
            return None
        state = dict(checkpoint.state)
        ledger = {
            name.removeprefix(LEDGER): state.pop(name) for name in list(state) if name.startswith(LEDGER)
        }
        return state, checkpoint.next_round, ledger

    def finished_rounds(self) -> list[Record]:
        """The records of the rounds that a resumed run need not repeat."""
        checkpoint = checkpoints.read_checkpoint(self.path)
        if checkpoint is None:
            return []
        kept = self._whole_records()[: checkpoint.next_round]
        if [record.get("round") for record in kept] != list(range(checkpoint.next_round)):
            raise UserError(
                f"{self.path / METRICS} is damaged: it lacks rounds before {checkpoint.next_round}"
            )
        return kept

    def finish(self, state: Mapping[str, Tensor], summary: Record) -> None:
        """Write the final model and then the summary."""
        with self._writing():
            write_atomically(self.path / MODEL, encode(state, {}))
            write_atomically(self.path / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())
            remove_checkpoints(self.path)
        shutil.rmtree(self.path / MASKS, ignore_errors=True)

    def unfinish(self) -> None:
        """Make the final model a checkpoint again, so that more rounds can follow it."""
        rounds = len(self.metrics)
        self.prepare_writing()
        self.write_checkpoint(self.model_state(), rounds)
        for name in (SUMMARY, MODEL):
            (self.path / name).unlink()

    def model_state(self) -> dict[str, Tensor]:
        """The final model's tensors."""
        return self._read(MODEL)[0]

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        file = self.path / name
        try:
            return decode(read_bounded(file, MAXIMUM_BYTES))
        except FileNotFoundError:
            if self.finished:
                raise UserError(
                    f"{self.path} has no {name}: the run is finished, but was published or copied without "
                    "its model; it can be reported on, but not evaluated, loaded or given more rounds"
                ) from None
            raise UserError(f"{self.path} has no {name}: the run is not finished, or damaged") from None
        except (MessageError, OSError) as error:
            raise UserError(f"{file} is damaged: {error}") from None

    def _whole_records(self) -> list[Record]:
        """Records up to the first line that is not one, such as a line that a crash left incomplete."""
        records: list[Record] = []
        file = self.path / METRICS
        for line in read_bounded(file, MAXIMUM_TEXT_BYTES).splitlines() if file.exists() else []:
            try:
                record = json.loads(line)
            except ValueError:
                break
            if not isinstance(record, dict):
                break
            records.append(record)
        return records

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FedmefError(
                f"cannot write into {self.path}: {error.strerror}; the last checkpoint is whole: "
                f"when that is mended, 'fedmef run --resume {self.path}' goes on with it"
            ) from error
