"""A run is a directory: it can be read, reported on, resumed and evaluated, and nothing else is needed.

config.toml              the experiment
network.json             the network as data
classes.json             optional: what people call each class
metrics.jsonl            a line a round
devices.jsonl            optional: what each device measured of itself, a line a round
checkpoint.safetensors   the model after the last finished round, and what the devices hold
checkpoint-before        the same after the round before
held/                    while it runs: the network and masks that the devices hold
summary.json             written last: its presence says that the run is finished
model.safetensors        the final model, sparse
best.safetensors         optional: the model of the highest test accuracy
server.safetensors       optional: the final state of the server's optimizer, for more rounds
fleet                    empty: devices have data of their own, so only their fleet can resume it
nodes.json               on a fleet: which key is which device
tensorboard/             event files, when they were asked for
lock                     while it runs: who writes it

Nothing in it is trusted when it is read, as it may be anybody's: only ordinary files of moderate size.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from fedmef.data.dataset import checked_names
from fedmef.errors import FedmefError, NetworkError, UserError, printable
from fedmef.experiment.files import MAXIMUM_CONFIG_BYTES, parse_experiment, to_toml
from fedmef.experiment.settings import Experiment
from fedmef.methods import weight_sparsity
from fedmef.runs import checkpoints
from fedmef.runs.checkpoints import CHECKPOINT, CHECKPOINT_BEFORE, has_checkpoint, remove_checkpoints
from fedmef.runs.lock import LOCK, WriteLock
from fedmef.runs.metrics import (
    DEVICES,
    MAXIMUM_METRICS,
    METRICS,
    forget_rounds,
    log_round,
    read_lines,
    read_record,
    read_rounds,
)
from fedmef.runs.reading import AGAIN, bounded, container_bytes, read_container, read_ordinary
from fedmef.runs.records import Round, Summary
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import Model, State, check_state
from fedmef.sparsity.network import MAXIMUM_BYTES as LARGEST_NETWORK
from fedmef.sparsity.network import Network
from fedmef.wire.files import exists, left_behind, write_atomically
from fedmef.wire.store import Store

CONFIG, NETWORK = "config.toml", "network.json"
SUMMARY, MODEL, CLASSES = "summary.json", "model.safetensors", "classes.json"
SERVER, BEST = "server.safetensors", "best.safetensors"
TENSORBOARD, HELD, FLEET, NODES = "tensorboard", "held", "fleet", "nodes.json"
LEDGER, MOMENTS = "ledger/", "moments/"  # in a checkpoint, before the names of what is not the model's
FILES = (
    *(SUMMARY, MODEL, CHECKPOINT, CHECKPOINT_BEFORE, METRICS, DEVICES, CLASSES),
    *(NETWORK, CONFIG, FLEET, NODES, SERVER, BEST),
)
FOLDERS = (TENSORBOARD, HELD)
MAXIMUM_SUMMARY = MAXIMUM_CLASSES = 2**21
# Settings that may name a user's own code, module:name.
CODE_FIELDS = ("dataset", "model", "method", "loss", "metrics")


class Run:
    """A run's directory, open for writing rounds or for reading.

    Attributes:
        lock: held by whoever writes.
    """

    def __init__(self, path: Path, experiment: Experiment, lock: WriteLock | None = None) -> None:
        self.path = path
        self.experiment = experiment
        self.lock = lock
        self._rounds: tuple[object, list[Round]] = (None, [])

    def __repr__(self) -> str:
        state = f"{self.summary.test_accuracy:.2%}" if self.finished else "not finished"
        if self.finished and (why := printable(self.summary.stopped)):
            state += f", stopped after {self.summary.rounds} of {self.experiment.rounds} rounds: {why}"
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
        lock: WriteLock | None = None,
        class_names: Sequence[str] | None = None,
    ) -> "Run":
        """A new run in an empty or missing directory, or in place of an old run.

        Nothing of the old run goes before what is new is on the disk, under temporary names.
        """
        cls.check_free(path, overwrite=overwrite)
        new = {NETWORK: _network_bytes(path, network), CONFIG: _config_bytes(path, experiment)}
        if class_names is not None:
            names = json.dumps(list(class_names), ensure_ascii=False).encode()
            new[CLASSES] = bounded(names, MAXIMUM_CLASSES, path / CLASSES)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the directory {path}: {error.strerror}") from None
        run = cls(path, experiment, lock)
        run.prepare_writing()
        staged = {name: path / f".{name}.{os.getpid()}" for name in new}  # as what a killed process leaves
        try:
            with run._writing("nothing of it was changed"):
                for name, content in new.items():
                    _write_down(staged[name], content)
            with run._writing("it holds no run any more"):
                for name in FILES:
                    if name not in new:
                        (path / name).unlink(missing_ok=True)
                for name in FOLDERS:
                    shutil.rmtree(path / name, ignore_errors=True)
                if on_fleet:
                    (path / FLEET).touch()
                for name, file in staged.items():
                    file.replace(path / name)
        finally:
            for file in staged.values():
                file.unlink(missing_ok=True)
        return run

    @staticmethod
    def check_free(path: Path, *, overwrite: bool = False) -> None:
        """Raise `UserError` when a new run must not go there; a run with no finished round is no obstacle."""
        if not exists(path):
            return
        try:
            if path.is_dir() and set(path.iterdir()) <= {path / LOCK, *left_behind(path, FILES)}:
                return
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
        if not (path / CONFIG).is_file() and not path.joinpath(NETWORK).is_file():
            raise UserError(f"{path} exists and is not a run; choose another --out")
        if not overwrite and ((path / SUMMARY).exists() or has_checkpoint(path)):
            raise UserError(
                f"{path} holds a run already; choose another directory, overwrite it (--overwrite) or "
                "resume it (--resume)"
            )

    @classmethod
    def open(cls, path: Path) -> "Run":
        """An existing run; damage is noticed where it is read."""
        if not _is_folder(path):
            what = "it is a file; " if exists(path) else ""
            raise UserError(
                f"there is no run directory {path}: {what}name the folder that a run was written to"
            )
        try:
            content = read_ordinary(path / CONFIG, MAXIMUM_CONFIG_BYTES)
        except FileNotFoundError:
            inside = min(path.glob(f"*/{CONFIG}"), default=None)
            hint = f"; name one of the runs in it, such as {inside.parent}" if inside else ""
            raise UserError(f"{path} is not a run directory: it has no {CONFIG}{hint}") from None
        experiment = parse_experiment(content, path / CONFIG)
        if experiment.data_dir is not None and not _is_folder(experiment.data_dir):
            # A run from elsewhere must not make folders here, not even for a download.
            experiment = experiment.model_copy(update={"data_dir": None})
        return cls(path, experiment)

    @staticmethod
    def store(path: Path) -> Store:
        """Where the simulated devices of a run at this path keep what they hold."""
        return Store(path / HELD, parents=False)

    @property
    def on_fleet(self) -> bool:
        """Whether its devices have data of their own: a simulation cannot resume it."""
        return (self.path / FLEET).exists()

    @property
    def how_to_resume(self) -> str:
        """For people."""
        if self.on_fleet:
            return "resume it on its fleet (docs/deploy.md)"
        allowing = " --allow-code" if self.code(self._needed_code()) else ""
        return f"'fedmef run --resume {self.path}{allowing}' continues it"

    def _needed_code(self) -> tuple[str, ...]:
        """The settings whose code resuming would run: a network's own only while it is not there as data."""
        there = has_checkpoint(self.path) and (self.path / NETWORK).is_file()  # if not, it says how to resume
        try:
            described = there and self.network.opaque is None
        except UserError:
            described = False
        return tuple(field for field in CODE_FIELDS if field != "model" or not described)

    def code(self, fields: Iterable[str] = CODE_FIELDS) -> dict[str, str]:
        """Those of these settings that name a user's own code, which reading a run never imports."""
        values = {field: getattr(self.experiment, field) for field in fields}
        named = {
            field: value if isinstance(value, str) else ",".join(value) for field, value in values.items()
        }
        return {field: name for field, name in named.items() if ":" in name}

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / SUMMARY).is_file()

    @property
    def complete(self) -> bool:
        """Whether it is finished with all of its rounds, and no callback stopped it before."""
        return self.finished and not self.summary.stopped

    @property
    def sparsity(self) -> float:
        """Of the weights; 0 for a dense method."""
        return weight_sparsity(self.experiment)

    @property
    def rounds(self) -> list[Round]:
        """What was logged, a record a round."""
        files = [_identity(self.path / name) for name in (METRICS, DEVICES)]
        if self._rounds[0] != files:
            self._rounds = files, read_rounds(self.path)
        return list(self._rounds[1])

    @cached_property
    def summary(self) -> Summary:
        """The run's result."""
        file = self.path / SUMMARY
        if not file.is_file():
            raise UserError(f"{self.path} is not finished; {self.how_to_resume}")
        return read_record(Summary, read_ordinary(file, MAXIMUM_SUMMARY), file)

    @cached_property
    def network(self) -> Network:
        """The network that it trains."""
        file = self.path / NETWORK
        try:
            return Network.from_json(read_ordinary(file, LARGEST_NETWORK))
        except FileNotFoundError:
            raise UserError(f"{self.path} has no {NETWORK}: {self._why_missing()}") from None
        except (NetworkError, OverflowError) as error:
            raise UserError(f"{file} is damaged: {error}; {AGAIN}") from None

    @cached_property
    def class_names(self) -> tuple[str, ...] | None:
        """What people call each class; None when nobody said."""
        file = self.path / CLASSES
        try:
            return checked_names(json.loads(read_ordinary(file, MAXIMUM_CLASSES)), self.network.classes)
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            reason = error if isinstance(error, UserError) else "it is no list of names"
            raise UserError(f"{file} is damaged: {reason}; delete it, and classes have numbers") from None

    def prepare_writing(self) -> None:
        """Remove what a killed process left; raises `UserError` for a link, which may lead out of here."""
        for name in (*FILES, *FOLDERS):
            file = self.path / name
            if file.is_symlink():
                raise UserError(
                    f"{file} is a symbolic link: a run writes into its own directory only; "
                    "put the file itself there"
                )
            kind = "file" if name in FILES else "folder"
            if os.path.lexists(file) and not (file.is_file() if kind == "file" else file.is_dir()):
                raise UserError(f"{file} is in the way: it is no ordinary {kind}")
        with self._writing("nothing of it was changed"):
            for file in left_behind(self.path, FILES):
                file.unlink(missing_ok=True)

    def write_network(self, network: Network) -> None:
        """Write the network down."""
        with self._writing():
            write_atomically(self.path / NETWORK, _network_bytes(self.path, network))
        self.__dict__.pop("network", None)

    def write_config(self) -> None:
        """Write the experiment down."""
        with self._writing():
            write_atomically(self.path / CONFIG, _config_bytes(self.path, self.experiment))

    def log(self, record: Round) -> None:
        """Append a round."""
        with self._writing():
            log_round(self.path, record)

    def write_checkpoint(
        self,
        state: Mapping[str, Array],
        next_round: int,
        ledger: Mapping[str, Array] | None = None,
        moments: Mapping[str, Array] | None = None,
    ) -> None:
        """What resuming needs; everything random derives from the seed and the round."""
        arrays = dict(state)
        for prefix, others in ((LEDGER, ledger), (MOMENTS, moments)):
            arrays |= {prefix + name: array for name, array in (others or {}).items()}
        with self._writing():
            checkpoints.write_checkpoint(self.path, arrays, {"next_round": next_round})

    def read_checkpoint(self) -> tuple[Model, int, dict[str, Array], dict[str, Array]] | None:
        """The model, the next round, the ledger and the optimizer's moments; None when no round was finished.

        Rounds that were logged after the checkpoint are forgotten: they will be run again.
        """
        self.prepare_writing()
        kept = self.finished_rounds()
        checkpoint = checkpoints.read_checkpoint(self.path)
        with self._writing():
            checkpoints.discard_torn(self.path)
            forget_rounds(self.path, len(kept))
        if checkpoint is None:
            return None
        state = dict(checkpoint.arrays)
        ledger, moments = (
            {name.removeprefix(prefix): state.pop(name) for name in list(state) if name.startswith(prefix)}
            for prefix in (LEDGER, MOMENTS)
        )
        return self._model(state), checkpoint.next_round, ledger, moments

    def write_best(self, state: State) -> None:
        """Keep the model of the highest test accuracy so far."""
        with self._writing():
            write_atomically(self.path / BEST, container_bytes(state, {}, self.path / BEST))

    def finished_rounds(self) -> list[Round]:
        """The records of the rounds that a resumed run need not repeat."""
        if self.finished:
            return self.rounds
        checkpoint = checkpoints.read_checkpoint(self.path)
        if checkpoint is None:
            return []
        kept: list[Round] = []
        for line in islice(read_lines(self.path / METRICS, MAXIMUM_METRICS), checkpoint.next_round):
            try:
                kept.append(Round.model_validate_json(line))
            except ValidationError:
                break  # a line that a crash left incomplete
        if [record.round for record in kept] != list(range(checkpoint.next_round)):
            raise UserError(
                f"{self.path / METRICS} is damaged: it lacks rounds before {checkpoint.next_round}"
            )
        return kept

    def finish(self, state: State, summary: Summary, moments: Mapping[str, Array] | None = None) -> None:
        """Write the final model, what more rounds would need, and then the summary."""
        with self._writing():
            result = (summary.model_dump_json(indent=2) + "\n").encode()
            write_atomically(self.path / MODEL, container_bytes(state, {}, self.path / MODEL))
            if moments:
                write_atomically(self.path / SERVER, container_bytes(moments, {}, self.path / SERVER))
            write_atomically(self.path / SUMMARY, bounded(result, MAXIMUM_SUMMARY, self.path / SUMMARY))
            remove_checkpoints(self.path)
        shutil.rmtree(self.path / HELD, ignore_errors=True)
        self.__dict__.pop("summary", None)

    def unfinish(self) -> None:
        """Make the final model a checkpoint again, so that more rounds can follow it."""
        rounds = len(self.rounds)
        self.prepare_writing()
        self.write_checkpoint(self.model().state, rounds, moments=self.moments())
        with self._writing():
            for name in (SUMMARY, MODEL, SERVER):
                (self.path / name).unlink(missing_ok=name == SERVER)
        self.__dict__.pop("summary", None)

    def model(self) -> Model:
        """The final model."""
        file = self.path / MODEL
        try:
            state, _ = read_container(file)
        except FileNotFoundError:
            raise UserError(f"{self.path} has no {MODEL}: {self._why_missing()}") from None
        return self._model(state)

    def best_model(self) -> Model:
        """The model of the highest test accuracy so far, the earliest of several."""
        try:
            state, _ = read_container(self.path / BEST)
        except FileNotFoundError:
            raise UserError(f"{self.path} has no {BEST}: a run keeps it with keep_best = true only") from None
        return self._model(state)

    def moments(self) -> dict[str, Array]:
        """The final state of the server's optimizer; {} when it has none."""
        try:
            return read_container(self.path / SERVER)[0]
        except FileNotFoundError:
            return {}

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
        return f"the run is not finished, or damaged; {self.how_to_resume}"

    def check_there(self) -> None:
        """Raise `FedmefError` when somebody has removed or replaced the directory that is being written."""
        if self.lock is not None:
            self.lock.check()

    @contextmanager
    def _writing(self, state: str = "the last checkpoint is intact") -> Iterator[None]:
        """Around all that writes: it must still be there, and `state` says what is left when it fails."""
        self.check_there()
        try:
            yield
        except OSError as error:
            raise FedmefError(
                f"cannot write into {self.path}: {error.strerror}; {state}: fix this; "
                f"then {self.how_to_resume}"
            ) from error


def read_finished(path: Path) -> Run:
    """The finished run in this directory; raises `UserError` when it is not finished, or damaged."""
    run = Run.open(path)
    expected = run.summary.rounds
    lines = sum(1 for _ in read_lines(path / METRICS, MAXIMUM_METRICS))  # soon, and records take long
    if lines != expected or [record.round for record in run.rounds] != list(range(expected)):
        raise UserError(f"{path / METRICS} is damaged: it lacks some of the {expected} rounds, or has more")
    if not (expected < run.experiment.rounds if run.summary.stopped else expected == run.experiment.rounds):
        raise UserError(
            f"{path} is damaged: {CONFIG} has {run.experiment.rounds} rounds, and {SUMMARY} {expected}"
        )
    for record in run.rounds:
        if (record.accuracy_before_adjustment is None) != (record.accuracy_after_adjustment is None):
            raise UserError(f"{path / METRICS} is damaged: round {record.round} lacks an accuracy")
    return run


def _write_down(file: Path, content: bytes) -> None:
    """A new file, on the disk when this returns; nobody reads it under this name."""
    with file.open("xb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def _network_bytes(folder: Path, network: Network) -> bytes:
    return bounded(network.to_json(), LARGEST_NETWORK, folder / NETWORK)


def _config_bytes(folder: Path, experiment: Experiment) -> bytes:
    return bounded(to_toml(experiment).encode(), MAXIMUM_CONFIG_BYTES, folder / CONFIG)


def _identity(file: Path) -> tuple[int, int, int] | None:
    """What changes when the file does; None when it is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, or not ours to look at
        return False
