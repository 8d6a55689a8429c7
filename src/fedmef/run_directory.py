"""A run is a directory: it can be read, reported on, resumed and evaluated, and nothing else is needed.

config.toml              the experiment
metrics.jsonl            a line a round
checkpoint.safetensors   the model after the last finished round
summary.json             written last: its presence says that the run is finished
model.safetensors        the final model, sparse
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedmef.errors import UserError
from fedmef.experiment import Experiment, read_experiment
from fedmef.files import write_atomically
from fedmef.wire import MessageError, decode, encode

CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"
CHECKPOINT, MODEL = "checkpoint.safetensors", "model.safetensors"

Record = dict[str, Any]


class Run:
    """A run's directory, open for writing rounds or for reading."""

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.path = path
        self.experiment = experiment

    @classmethod
    def create(cls, path: Path, experiment: Experiment, *, overwrite: bool = False) -> "Run":
        """A new run in an empty or missing directory, or in place of an old run."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            if not (path / CONFIG).is_file():
                raise UserError(f"{path} exists and is not a run; choose another --out")
            if not overwrite:
                raise UserError(
                    f"{path} holds a run already; choose another --out, --overwrite or --resume it"
                )
            for name in (SUMMARY, MODEL, CHECKPOINT, METRICS, CONFIG):
                (path / name).unlink(missing_ok=True)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the directory {path}: {error.strerror}") from None
        write_atomically(path / CONFIG, experiment.to_toml().encode())
        return cls(path, experiment)

    @classmethod
    def open(cls, path: Path) -> "Run":
        """An existing run; damage is noticed where it is read."""
        if not path.is_dir():
            raise UserError(f"there is no run directory {path}")
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is not a run directory: it has no {CONFIG}")
        return cls(path, read_experiment(path / CONFIG))

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
        if not isinstance(summary, dict):
            raise UserError(f"{file} is damaged: it is not a table")
        return summary

    def log(self, record: Record) -> None:
        """Append a round."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def write_checkpoint(self, state: Mapping[str, Tensor], next_round: int) -> None:
        """What resuming needs; everything random derives from the seed and the round."""
        write_atomically(self.path / CHECKPOINT, encode(state, {"next_round": next_round}))

    def read_checkpoint(self) -> tuple[dict[str, Tensor], int] | None:
        """The model and the round to go on with, or None when no round was finished.

        Rounds that were logged after the checkpoint are forgotten: they will be run again.
        """
        if not (self.path / CHECKPOINT).is_file():
            (self.path / METRICS).unlink(missing_ok=True)
            return None
        state, header = self._read(CHECKPOINT)
        next_round = header.get("next_round")
        if not isinstance(next_round, int):
            raise UserError(f"{self.path / CHECKPOINT} is damaged: it names no round")
        kept = [record for record in self._whole_records() if record["round"] < next_round]
        lines = "".join(json.dumps(record) + "\n" for record in kept)
        write_atomically(self.path / METRICS, lines.encode())
        return state, next_round

    def finish(self, state: Mapping[str, Tensor], summary: Record) -> None:
        """Write the final model and then the summary."""
        write_atomically(self.path / MODEL, encode(state, {}))
        write_atomically(self.path / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())
        (self.path / CHECKPOINT).unlink(missing_ok=True)

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
        """Records up to the first line that a crash left incomplete."""
        records: list[Record] = []
        file = self.path / METRICS
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
            try:
                records.append(json.loads(line))
            except ValueError:
                break
        return records
