"""A run is a directory: it can be read, reported on, resumed and evaluated, and nothing else is needed.

config.toml              the experiment
network.json             the network as data
metrics.jsonl            a line a round
checkpoint.safetensors   the model after the last finished round, and what the devices hold
checkpoint-before        the same after the round before
held/                    while it runs: the network and masks that the devices hold
summary.json             written last: its presence says that the run is finished
model.safetensors        the final model, sparse
fleet                    empty: devices have data of their own, so only their fleet can resume it
nodes.json               on a fleet: which key is which device
tensorboard/             event files, when they were asked for
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from fedmef.errors import FedmefError, MessageError, NetworkError, UserError
from fedmef.experiment.files import read_experiment, to_toml
from fedmef.experiment.settings import Experiment
from fedmef.methods import weight_sparsity
from fedmef.runs import checkpoints
from fedmef.runs.checkpoints import CHECKPOINT, CHECKPOINT_BEFORE, has_checkpoint, remove_checkpoints
from fedmef.runs.records import Round, Summary
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import Model, State, check_state
from fedmef.sparsity.network import MAXIMUM_BYTES as LARGEST_NETWORK
from fedmef.sparsity.network import Network
from fedmef.wire.container import MAXIMUM_BYTES, decode, encode
from fedmef.wire.files import left_behind, read_bounded, write_atomically
from fedmef.wire.store import Store

CONFIG, NETWORK, METRICS = "config.toml", "network.json", "metrics.jsonl"
SUMMARY, MODEL = "summary.json", "model.safetensors"
TENSORBOARD, HELD, FLEET, NODES = "tensorboard", "held", "fleet", "nodes.json"
LEDGER = "ledger/"  # in a checkpoint, before the names of what is not the model's
FILES = (SUMMARY, MODEL, CHECKPOINT, CHECKPOINT_BEFORE, METRICS, NETWORK, CONFIG, FLEET, NODES)
MAXIMUM_TEXT_BYTES = 2**30  # of metrics or a summary

Kind = TypeVar("Kind", Round, Summary)


class Run:
    """A run's directory, open for writing rounds or for reading."""

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.path = path
        self.experiment = experiment

    def __repr__(self) -> str:
        state = f"{self.summary.test_accuracy:.2%}" if self.finished else "not finished"
        return f"Run({str(self.path)!r}, {self.experiment.method} on {self.experiment.dataset}: {state})"

    @classmethod
    def create(
        cls,
        path: Path,
        experiment: Experiment,
        network: Network,
        *,
        overwrite: bool = False,
        on_fleet: bool = False,
    ) -> "Run":
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
        for name in (TENSORBOARD, HELD):
            shutil.rmtree(path / name, ignore_errors=True)
        if on_fleet:
            (path / FLEET).touch()
        run.write_network(network)
        run.write_config()
        return run

    @staticmethod
    def check_free(path: Path, *, overwrite: bool = False) -> None:
        """Raise `UserError` when a new run must not go there; a run with no finished round is no obstacle."""
        if not path.exists() or (path.is_dir() and set(path.iterdir()) <= set(left_behind(path, FILES))):
            return
        if not (path / CONFIG).is_file() and not path.joinpath(NETWORK).is_file():
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
    def store(path: Path) -> Store:
        """Where the simulated devices of a run at this path keep what they hold."""
        return Store(path / HELD)

    @property
    def on_fleet(self) -> bool:
        """Whether its devices have data of their own: a simulation cannot resume it."""
        return (self.path / FLEET).exists()

    @property
    def how_to_resume(self) -> str:
        """For people."""
        if self.on_fleet:
            return "resume it on its fleet (docs/deploy.md)"
        return f"'fedmef run --resume {self.path}' continues it"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / SUMMARY).is_file()

    @property
    def sparsity(self) -> float:
        """Of the weights; 0 for a dense method."""
        return weight_sparsity(self.experiment)

    @property
    def rounds(self) -> list[Round]:
        """What was logged, a record a round."""
        file = self.path / METRICS
        return [_read_record(Round, line, file) for line in self._lines()]

    @cached_property
    def summary(self) -> Summary:
        """The run's result."""
        file = self.path / SUMMARY
        if not file.is_file():
            raise UserError(f"{self.path} is not finished; {self.how_to_resume}")
        return _read_record(Summary, _read_text(file), file)

    @cached_property
    def network(self) -> Network:
        """The network that it trains."""
        file = self.path / NETWORK
        try:
            return Network.from_json(read_bounded(file, LARGEST_NETWORK))
        except FileNotFoundError:
            raise UserError(f"{self.path} has no {NETWORK}: {self._why_missing()}") from None
        except (OSError, NetworkError) as error:
            raise UserError(f"{file} is damaged: {error}") from None

    def prepare_writing(self) -> None:
        """Remove what a killed process left; raises `UserError` for a link, which may lead out of here."""
        for name in (*FILES, TENSORBOARD, HELD):
            if (self.path / name).is_symlink():
                raise UserError(
                    f"{self.path / name} is a symbolic link: a run writes into its own directory only; "
                    "put the file itself there"
                )
        for file in left_behind(self.path, FILES):
            file.unlink(missing_ok=True)

    def write_network(self, network: Network) -> None:
        """Write the network down."""
        with self._writing():
            write_atomically(self.path / NETWORK, network.to_json())
        self.__dict__.pop("network", None)

    def write_config(self) -> None:
        """Write the experiment down."""
        with self._writing():
            write_atomically(self.path / CONFIG, to_toml(self.experiment).encode())

    def log(self, record: Round) -> None:
        """Append a round."""
        with self._writing(), (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(record.model_dump_json() + "\n")
            file.flush()
            os.fsync(file.fileno())  # the checkpoint that follows must not be ahead of its metrics

    def write_checkpoint(
        self, state: Mapping[str, Array], next_round: int, ledger: Mapping[str, Array] | None = None
    ) -> None:
        """What resuming needs; everything random derives from the seed and the round."""
        arrays = {**state, **{LEDGER + name: array for name, array in (ledger or {}).items()}}
        with self._writing():
            checkpoints.write_checkpoint(self.path, arrays, {"next_round": next_round})

    def read_checkpoint(self) -> tuple[Model, int, dict[str, Array]] | None:
        """The model, the round to continue with and the ledger, or None when no round was finished.

        Rounds that were logged after the checkpoint are forgotten: they will be run again.
        """
        self.prepare_writing()
        kept = self.finished_rounds()
        checkpoint = checkpoints.read_checkpoint(self.path)
        lines = "".join(record.model_dump_json() + "\n" for record in kept)
        with self._writing():
            checkpoints.discard_torn(self.path)
            write_atomically(self.path / METRICS, lines.encode())
        if checkpoint is None:
            return None
        state = dict(checkpoint.arrays)
        ledger = {
            name.removeprefix(LEDGER): state.pop(name) for name in list(state) if name.startswith(LEDGER)
        }
        return self._model(state), checkpoint.next_round, ledger

    def finished_rounds(self) -> list[Round]:
        """The records of the rounds that a resumed run need not repeat."""
        if self.finished:
            return self.rounds
        checkpoint = checkpoints.read_checkpoint(self.path)
        if checkpoint is None:
            return []
        kept: list[Round] = []
        for line in self._lines()[: checkpoint.next_round]:
            try:
                kept.append(Round.model_validate_json(line))
            except ValidationError:
                break  # a line that a crash left incomplete
        if [record.round for record in kept] != list(range(checkpoint.next_round)):
            raise UserError(
                f"{self.path / METRICS} is damaged: it lacks rounds before {checkpoint.next_round}"
            )
        return kept

    def finish(self, state: State, summary: Summary) -> None:
        """Write the final model and then the summary."""
        with self._writing():
            write_atomically(self.path / MODEL, encode(state, {}))
            write_atomically(self.path / SUMMARY, (summary.model_dump_json(indent=2) + "\n").encode())
            remove_checkpoints(self.path)
        shutil.rmtree(self.path / HELD, ignore_errors=True)
        self.__dict__.pop("summary", None)

    def unfinish(self) -> None:
        """Make the final model a checkpoint again, so that more rounds can follow it."""
        rounds = len(self.rounds)
        self.prepare_writing()
        self.write_checkpoint(self.model().state, rounds)
        for name in (SUMMARY, MODEL):
            (self.path / name).unlink()
        self.__dict__.pop("summary", None)

    def model(self) -> Model:
        """The final model."""
        file = self.path / MODEL
        try:
            state, _ = decode(read_bounded(file, MAXIMUM_BYTES))
        except FileNotFoundError:
            raise UserError(f"{self.path} has no {MODEL}: {self._why_missing()}") from None
        except (MessageError, OSError) as error:
            raise UserError(f"{file} is damaged: {error}") from None
        return self._model(state)

    def _model(self, state: State) -> Model:
        try:
            check_state(self.network, state)
        except NetworkError as error:
            raise UserError(f"{self.path} is damaged: its arrays do not fit its network ({error})") from None
        return Model(self.network, {name: state[name] for name in self.network.arrays})

    def _why_missing(self) -> str:
        if self.finished:
            return (
                "the run is finished, but was published or copied without its model; it can be reported on, "
                "but not evaluated, loaded or given more rounds"
            )
        return "the run is not finished, or damaged"

    def _lines(self) -> list[bytes]:
        file = self.path / METRICS
        return _read_text(file).splitlines() if file.exists() else []

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FedmefError(
                f"cannot write into {self.path}: {error.strerror}; the last checkpoint is intact: fix this; "
                f"then {self.how_to_resume}"
            ) from error


def read_finished(path: Path) -> Run:
    """The finished run in this directory; raises `UserError` when it is not finished, or damaged."""
    run = Run.open(path)
    if [record.round for record in run.rounds] != list(range(run.summary.rounds)):
        raise UserError(f"{path / METRICS} is damaged: it lacks some of the {run.summary.rounds} rounds")
    for record in run.rounds:
        if (record.accuracy_before_adjustment is None) != (record.accuracy_after_adjustment is None):
            raise UserError(f"{path / METRICS} is damaged: round {record.round} lacks an accuracy")
    return run


def _read_text(file: Path) -> bytes:
    try:
        return read_bounded(file, MAXIMUM_TEXT_BYTES)
    except OSError as error:
        raise UserError(f"{file} is damaged: {error}") from None


def _read_record(kind: type[Kind], text: bytes, file: Path) -> Kind:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"{file} is damaged: {place}: {first['msg']}") from None
