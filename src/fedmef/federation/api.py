"""What a user calls: run an experiment, resume a run, load or evaluate its model. All checks happen here."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmef.costs.limit import check_device_memory
from fedmef.costs.units import counted
from fedmef.data import Dataset
from fedmef.data.array_folder import PREPARED
from fedmef.data.load import names_folder
from fedmef.device.backend import backend_for
from fedmef.device.choice import missing_kernels
from fedmef.errors import FedmefError, UserError
from fedmef.experiment.files import resumed_experiment
from fedmef.experiment.settings import LONGEST_NAME, Experiment
from fedmef.federation.arguments import Part, as_dataset, experiment_of
from fedmef.federation.consent import check_consent
from fedmef.federation.engines import Engine, start_engine
from fedmef.federation.evaluation import Score, evaluate, moderate_batch
from fedmef.federation.loop import federate
from fedmef.federation.module import as_module
from fedmef.federation.own_metrics import find_metrics
from fedmef.federation.preparation import (
    Prepared,
    check_method_and_machine,
    check_names,
    check_network,
    check_new,
    open_dataset,
    prepare,
)
from fedmef.federation.simulated.fleet import Fleet, following_users
from fedmef.runs.callbacks import AnyCallback, Callback, as_callbacks
from fedmef.runs.directory import CODE_FIELDS, Run
from fedmef.runs.lock import check_unlocked, locked
from fedmef.runs.metrics import check_length
from fedmef.runs.place import check_place
from fedmef.runs.signals import stop_on_signals
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.network import Network
from fedmef.wire.job import CROSS_ENTROPY

if TYPE_CHECKING:
    from torch import nn

EngineStarter = Callable[[Fleet], Engine]
Tell = Callable[[str], None]  # what is being waited for, for a person


def silent(message: str) -> None:
    """Tell nobody."""


def run(
    experiment: Experiment | Path | str | None = None,
    out: Path | str | None = None,
    *,
    model: Part | None = None,
    method: Part | None = None,
    loss: Part | None = None,
    metrics: Mapping[str, Part] | None = None,
    dataset: Dataset | Part | None = None,
    overwrite: bool = False,
    callbacks: Sequence[AnyCallback] = (),
    start: EngineStarter = start_engine,
    elsewhere: bool = False,
    tell: Tell = silent,
    **settings: Any,
) -> Run:
    """Run an experiment in a new directory and return it: `fedmef.run(method="fedtiny", rounds=10)`.

    Args:
        experiment: what to run, or the TOML file that says it; by default what the other arguments say.
        out: the run's directory; by default a new one under `runs/`.
        model: a function or class that builds the network, called with `classes` and `channels`; or its name.
        method: a subclass of `fedmef.methods.Method`, or its name.
        loss: a function of logits [n, classes] and labels [n] that gives their mean loss; or its name.
        metrics: functions of logits [n, classes] and labels [n] of the test data, NumPy arrays, that give one
            number; or their names.
        dataset: the data, a function that gives them, or a name; by default what the experiment names. The
            run is recorded with the name of what it got.
        overwrite: replace a run that is there already.
        callbacks: functions of (record, model), called after every round, and objects of subclasses of
            `fedmef.Callback`; each may end the run (`fedmef.StopRun`).
        start: gives the engine that carries the messages; by default the one that the experiment asks for.
        elsewhere: devices have data of their own; of `dataset`, only `test` is used, and its statistics.
        tell: told what is being waited for before the first round.
        settings: fields of the experiment; they come before those that it has.
    """
    told, opened = as_callbacks(callbacks), as_dataset(dataset)
    named = None if opened is not None else dataset
    parts = {"model": model, "method": method, "loss": loss, "metrics": metrics, "dataset": named}
    experiment = _naming(experiment_of(experiment, settings, parts), opened)
    path = Path(out) if out is not None else new_directory(experiment)
    check_new(experiment)
    check_length(experiment)
    check_unlocked(path)
    Run.check_free(path, overwrite=overwrite)
    check_place(path)
    tell("opening the data and building the network")
    data = opened or open_dataset(experiment)
    if elsewhere and experiment.devices_follow_users:
        raise UserError("partition = 'natural': on a fleet each device has data of its own; leave it out")
    experiment = following_users(experiment, data)
    prepared = prepare(experiment, data)
    fleet = _fleet(prepared, path, elsewhere)
    check_device_memory(prepared.experiment, prepared.dataset.shape, prepared.dataset.classes, tell)
    tell("starting the devices")
    with stop_on_signals() as stop, locked(path, make=True) as lock, start(fleet) as engine:
        network = prepared.model.network
        directory = Run.create(
            path,
            experiment,
            network,
            overwrite=overwrite,
            on_fleet=elsewhere,
            lock=lock,
            class_names=data.class_names,
        )
        return federate(directory, prepared, engine, told, stop, shares=fleet.shares)


def resume(
    path: Path | str,
    changes: Mapping[str, Any] | None = None,
    *,
    dataset: Dataset | None = None,
    callbacks: Sequence[AnyCallback] = (),
    start: EngineStarter = start_engine,
    elsewhere: bool = False,
    allow_code: bool = False,
    tell: Tell = silent,
) -> Run:
    """Continue an interrupted run; it ends in the same bits as one that was never interrupted.

    `changes` may name another number of rounds, engine, accelerator, number of workers or data folder, but
    not another experiment. The backend stays the one that the run began with. More rounds follow a finished
    run too; its adjustments stay those of its first rounds. A finished run that is given no more rounds is
    returned as it is, unless a callback stopped it.

    A directory may be anybody's: code that it names (`module:name`) is run only if `allow_code` says so, or
    `changes` name the same code.
    """
    changes, told = changes or {}, as_callbacks(callbacks)
    directory = Run.open(Path(path))
    experiment = resumed_experiment(directory.experiment, changes)
    if directory.complete and experiment.rounds == directory.experiment.rounds:
        return directory
    with locked(directory.path) as lock:
        directory = Run.open(directory.path)  # from here on nobody else changes it
        directory.lock = lock
        if directory.complete and experiment.rounds == directory.experiment.rounds:
            return directory
        return _resume(directory, changes, dataset, told, start, elsewhere, allow_code, tell)


def _resume(
    directory: Run,
    changes: Mapping[str, Any],
    dataset: Dataset | None,
    callbacks: Sequence[Callback],
    start: EngineStarter,
    elsewhere: bool,
    allow_code: bool,
    tell: Tell,
) -> Run:
    experiment = resumed_experiment(directory.experiment, changes)
    longer = experiment.rounds != directory.experiment.rounds
    check_length(experiment)
    if directory.on_fleet and not elsewhere:
        raise UserError(
            f"{directory.path}: its devices have data of their own, which a simulation has not; "
            + directory.how_to_resume
        )
    rounds = directory.finished_rounds()
    done = len(rounds)
    if longer and experiment.rounds < done:
        raise UserError(
            f"rounds = {experiment.rounds}: {directory.path} has done {counted(done, 'round')} already"
        )
    executed = experiment.model_copy(update={"backend": rounds[-1].backend}) if rounds else experiment
    needs_model = done == 0 or directory.network.opaque is not None
    needed = dict.fromkeys(CODE_FIELDS, True) | {"dataset": dataset is None, "model": needs_model}
    asked = (field for field, need in needed.items() if need and field not in changes)
    check_consent(directory, asked, allow_code)
    if needs_model:
        check_names(executed)
    else:
        check_method_and_machine(executed)
    tell("opening the data")
    data = dataset or open_dataset(experiment)
    check_device_memory(executed, data.shape, data.classes, tell)
    finished, ledger, moments = directory.finished, dict[str, Array](), dict[str, Array]()
    if finished:
        prepared, first_round = Prepared.of(executed, data, directory.model()), done
        moments = directory.moments()
    elif (checkpoint := directory.read_checkpoint()) is not None:
        model, first_round, ledger, moments = checkpoint
        prepared = Prepared.of(executed, data, model)
    else:
        prepared, first_round = prepare(executed, data), 0
    if first_round and experiment.server_optimizer != "none" and not moments:
        raise UserError(f"{directory.path} is damaged: the state of its server_optimizer is missing")
    _check_data(prepared.model.network, data)
    fleet = _fleet(prepared, directory.path, elsewhere)
    if not (elsewhere or fleet.store.folder.is_dir()):
        ledger = {}  # what the devices held is gone
    tell("starting the devices")
    with stop_on_signals() as stop, start(fleet) as engine:
        if finished:
            directory.unfinish()
        directory.experiment = experiment
        if longer:
            directory.write_config()
        if first_round == 0:
            directory.write_network(prepared.model.network)  # its code may have changed
        return federate(
            directory,
            prepared,
            engine,
            callbacks,
            stop,
            first_round=first_round,
            ledger=ledger,
            moments=moments,
            shares=fleet.shares,
        )


def load(path: Path | str, *, best: bool = False, allow_code: bool = False) -> "nn.Module":
    """A finished run's model as a PyTorch module, ready to predict, from its directory alone.

    It takes images of uint8 [n, channels, height, width]; floating-point ones count as normalised already. A
    network that cannot be described as data is your own module, and takes normalised images only: then the
    directory names its code, which is run only with `allow_code`. `best` gives the model of the round with
    the highest test accuracy instead of the last, if the run kept it (`keep_best`).
    """
    directory = Run.open(Path(path))
    model = directory.best_model() if best else directory.model()
    if model.network.opaque is not None:
        check_consent(directory, ("model", "method"), allow_code)
        check_network(directory.experiment)
    return as_module(directory.experiment, model)


def evaluate_run(directory: Run, *, allow_code: bool = False) -> Score:
    """Score a run's final model on the test data, from its files alone.

    Code that its configuration names, for its data, metrics or network, is run only with `allow_code`.
    """
    model = directory.model()
    own_network = ("model", "method") if model.network.opaque is not None else ()
    check_consent(directory, ("dataset", "metrics", *own_network), allow_code)
    dataset = open_dataset(directory.experiment)
    _check_data(model.network, dataset)
    # What executed the run, unless it is not here: another backend answers the same, up to rounding.
    backend = "auto" if missing_kernels() else directory.summary.backend
    executed = directory.experiment.model_copy(update={"backend": backend, "loss": CROSS_ENTROPY})
    metrics = find_metrics(executed)
    try:
        batch_size, opened = moderate_batch(model.network), backend_for(executed, model.network)
        return evaluate(opened, model.state, dataset.test, batch_size, metrics)
    except (MemoryError, RuntimeError) as error:  # a network may be valid, and beyond any machine
        if own_network:
            raise
        raise FedmefError(f"{directory.path}: its network cannot be executed here ({error})") from error


def new_directory(experiment: Experiment) -> Path:
    """A directory under `runs/` that is not there yet, named after the time and the experiment."""
    data = Path(experiment.dataset).name if names_folder(experiment.dataset) else experiment.dataset
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{experiment.method}-{data}"
    name = name.replace(":", "-").replace("/", "-")
    path = Path("runs") / name
    number = 2
    while path.exists():
        path = path.with_name(f"{name}-{number}")
        number += 1
    return path


def _naming(experiment: Experiment, dataset: Dataset | None) -> Experiment:
    """The experiment with the name of the data that it gets; a user's own function or folder stays named."""
    if dataset is None or ":" in experiment.dataset or names_folder(experiment.dataset):
        return experiment
    name = dataset.name
    if dataset.folder is not None and dataset.folder.suffix != PREPARED:
        path = dataset.folder.absolute().as_posix()  # from there it is found again, to resume or to evaluate
        if ":" not in path and len(path) <= LONGEST_NAME:  # a colon is a function's
            name = path
    return experiment.model_copy(update={"dataset": name})


def _fleet(prepared: Prepared, path: Path, elsewhere: bool) -> Fleet:
    """The devices of a run; those that are elsewhere have their own data."""
    store = Run.store(path)
    if elsewhere:
        return Fleet(prepared.experiment, prepared.dataset, [], store)
    return Fleet.build(prepared.experiment, prepared.dataset, store)


def _check_data(network: Network, dataset: Dataset) -> None:
    if dataset.shape != network.input.shape or dataset.classes != network.classes:
        raise UserError(
            f"dataset '{dataset.name}' has images of shape {list(dataset.shape)} and {dataset.classes} "
            f"classes, but the run's network takes {list(network.input.shape)} and {network.classes}"
        )
