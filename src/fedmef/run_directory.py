"""A run is a directory: it can be read, reported on, resumed and evaluated, and nothing else is needed.

config.toml              the experiment
metrics.jsonl            a line a round
checkpoint.safetensors   the model after the last finished round, and which masks the devices hold
masks/                   while it runs: the masks that the devices hold
summary.json             written last: its presence says that the run is finished
model.safetensors        the final model, sparse
tensorboard/             event files, when they were asked for
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedmef.errors import UserError
from fedmef.experiment import Experiment, read_experiment
from fedmef.files import write_atomically
from fedmef.wire import MaskMemory, MessageError, decode, encode

CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"
CHECKPOINT, MODEL = "checkpoint.safetensors", "model.safetensors"
TENSORBOARD, MASKS = "tensorboard", "masks"
LEDGER = "ledger/"  # in a checkpoint, before the names of what is not the model's

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
        for name in (SUMMARY, MODEL, CHECKPOINT, METRICS, CONFIG):
            (path / name).unlink(missing_ok=True)
        for name in (TENSORBOARD, MASKS):
            shutil.rmtree(path / name, ignore_errors=True)
        write_atomically(path / CONFIG, experiment.to_toml().encode())
        return cls(path, experiment)

    @staticmethod
    def check_free(path: Path, *, overwrite: bool = False) -> None:
        """Raise `UserError` when a new run must not go there; a run with no finished round is no obstacle."""
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} exists and is not a run; choose another directory")
        if not overwrite and any((path / name).exists() for name in (SUMMARY, CHECKPOINT)):
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
        return cls(path, read_experiment(path / CONFIG))

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
            text = file.read_text(encoding="utf-8") if file.exists() else ""
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
            summary = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise UserError(f"{file} is damaged: {error}") from None
        if not isinstance(summary, dict) or not summary.keys() >= SUMMARY_FIELDS:
            raise UserError(f"{file} is damaged: it is not a run's summary")
        return summary

    def log(self, record: Record) -> None:
        """Append a round."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # the checkpoint that follows must not be ahead of its metrics

    def write_checkpoint(
        self, state: Mapping[str, Tensor], next_round: int, ledger: Mapping[str, Tensor] | None = None
    ) -> None:
        """What resuming needs; everything random derives from the seed and the round."""
        tensors = {**state, **{LEDGER + name: tensor for name, tensor in (ledger or {}).items()}}
        write_atomically(self.path / CHECKPOINT, encode(tensors, {"next_round": next_round}))

    def read_checkpoint(self) -> tuple[dict[str, Tensor], int, dict[str, Tensor]] | None:
        """The model, the round to go on with and the ledger, or None when no round was finished.

        Rounds that were logged after the checkpoint are forgotten: they will be run again.
        """
        kept = self.finished_rounds()
        lines = "".join(json.dumps(record) + "\n" for record in kept)
        write_atomically(self.path / METRICS, lines.encode())
        if not kept:
            return None
        state = self._read(CHECKPOINT)[0]
        ledger = {
            name.removeprefix(LEDGER): state.pop(name) for name in list(state) if name.startswith(LEDGER)
        }
        return state, len(kept), ledger

    def finished_rounds(self) -> list[Record]:
        """The records of the rounds that a resumed run need not repeat."""
        if not (self.path / CHECKPOINT).is_file():
            return []
        next_round = self._read(CHECKPOINT)[1].get("next_round")
        if not isinstance(next_round, int) or next_round < 1:
            raise UserError(f"{self.path / CHECKPOINT} is damaged: it names no round")
        kept = self._whole_records()[:next_round]
        if [record.get("round") for record in kept] != list(range(next_round)):
            raise UserError(f"{self.path / METRICS} is damaged: it lacks rounds before {next_round}")
        return kept

    def finish(self, state: Mapping[str, Tensor], summary: Record) -> None:
        """Write the final model and then the summary."""
        write_atomically(self.path / MODEL, encode(state, {}))
        write_atomically(self.path / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())
        (self.path / CHECKPOINT).unlink(missing_ok=True)
        shutil.rmtree(self.path / MASKS, ignore_errors=True)

    def model_state(self) -> dict[str, Tensor]:
        """The final model's tensors."""
        return self._read(MODEL)[0]

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        file = self.path / name
        try:
            return decode(file.read_bytes())
        except FileNotFoundError:
            raise UserError(f"{self.path} has no {name}: the run is not finished, or damaged") from None
        except (MessageError, OSError) as error:
            raise UserError(f"{file} is damaged: {error}") from None

    def _whole_records(self) -> list[Record]:
        """Records up to the first line that is not one, such as a line that a crash left incomplete."""
        records: list[Record] = []
        file = self.path / METRICS
        for line in file.read_bytes().splitlines() if file.exists() else []:
            try:
                record = json.loads(line)
            except ValueError:
                break
            if not isinstance(record, dict):
                break
            records.append(record)
        return records
