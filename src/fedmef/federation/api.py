"""The loop: choose devices, send, collect, absorb, adjust, evaluate, log."""

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedmef.costs.limit import check_device_memory
from fedmef.data import Dataset
from fedmef.errors import Interrupted, UserError
from fedmef.experiment.resuming import resumed_experiment
from fedmef.experiment.settings import Experiment
from fedmef.federation.collection import collect
from fedmef.federation.engines import Engine, Fleet, prepared_model, start_engine
from fedmef.federation.evaluation import Score, evaluate
from fedmef.federation.preparation import build_fleet, check_names
from fedmef.federation.privacy import spent_epsilon
from fedmef.federation.server import Server
from fedmef.federation.update_checks import UpdateChecks
from fedmef.methods import build_method
from fedmef.nn import sparse_layers
from fedmef.runs.directory import Record, Run
from fedmef.runs.signals import StopRequest, stop_on_signals

Watcher = Callable[[Record], None]
EngineStarter = Callable[[Fleet], Engine]


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    *,
    dataset: Dataset | None = None,
    overwrite: bool = False,
    watch: Watcher | None = None,
    start: EngineStarter = start_engine,
    elsewhere: bool = False,
) -> Run:
    """Run an experiment in a new directory and return it.

    Args:
        experiment: what to run.
        out: the run's directory; by default a new one under `runs/`.
        dataset: the data, if they are open already or your own; by default what the experiment names.
        overwrite: replace a run that is there already.
        watch: called with every round's record.
        start: gives the engine that carries the messages; by default the one that the experiment asks for.
        elsewhere: devices have data of their own; of `dataset`, only `test` is used, and its statistics.
    """
    # Whatever is wrong with the experiment shows before anything is written.
    path = Path(out) if out is not None else new_directory(experiment)
    fleet = build_fleet(experiment, dataset, Run.mask_memory(path, experiment), elsewhere=elsewhere)
    Run.check_free(path, overwrite=overwrite)
    check_device_memory(experiment, fleet.dataset.shape, fleet.dataset.classes)
    with one_thread(), stop_on_signals() as stop, start(fleet) as engine:
        return _federate(Run.create(path, experiment, overwrite=overwrite), fleet, engine, watch, stop)


def resume(
    path: Path | str,
    changes: Mapping[str, Any] | None = None,
    *,
    dataset: Dataset | None = None,
    watch: Watcher | None = None,
    start: EngineStarter = start_engine,
    elsewhere: bool = False,
) -> Run:
    """Go on with an interrupted run; it ends in the same bits as one that was never interrupted.

    `changes` may name another number of rounds, engine, device, number of workers or data folder, but not
    another experiment. More rounds follow a finished run too; its adjustments stay those of its first rounds.
    """
    directory = Run.open(Path(path))
    experiment = resumed_experiment(directory.experiment, changes or {})
    longer = experiment.rounds != directory.experiment.rounds
    done = len(directory.metrics) if directory.finished else len(directory.finished_rounds())
    if longer and experiment.rounds < done:
        raise UserError(f"rounds = {experiment.rounds}: {directory.path} has done {done} rounds already")
    if directory.finished and not longer:
        return directory
    memory = Run.mask_memory(directory.path, experiment)
    fleet = build_fleet(experiment, dataset, memory, elsewhere=elsewhere)
    check_device_memory(experiment, fleet.dataset.shape, fleet.dataset.classes)
    if directory.finished:
        directory.unfinish()
    directory.experiment = experiment
    if longer:
        directory.write_config()
    with one_thread(), stop_on_signals() as stop, start(fleet) as engine:
        return _federate(directory, fleet, engine, watch, stop)


def load(path: Path | str) -> nn.Module:
    """A finished run's model, ready to predict, from its directory alone.

    It takes what the training data look like after `fedmef.data.to_input`.
    """
    directory = Run.open(Path(path))
    experiment, summary = directory.experiment, directory.summary
    check_names(experiment)
    method = build_method(experiment)
    model = prepared_model(experiment, method, summary["classes"], summary["image_shape"][0])
    _load(model, directory.model_state(), directory)
    return model.eval()


def evaluate_run(directory: Run) -> Score:
    """Score a run's final model on the test data, from its files alone."""
    state = directory.model_state()
    fleet = build_fleet(directory.experiment)
    _load(fleet.model, state, directory)
    with one_thread():
        return _evaluate(fleet.model, fleet)


def _federate(directory: Run, fleet: Fleet, engine: Engine, watch: Watcher | None, stop: StopRequest) -> Run:
    experiment = directory.experiment
    classes, image_shape = fleet.dataset.classes, fleet.dataset.shape
    model = prepared_model(experiment, fleet.method, classes, image_shape[0])
    first_round, ledger = 0, dict[str, Tensor]()
    if checkpoint := directory.read_checkpoint():
        state, first_round, ledger = checkpoint
        _load(model, state, directory)
    most_samples = len(fleet.dataset.train) if fleet.shares else None
    server = Server(fleet.method, model, UpdateChecks(most_samples, experiment.max_update_norm))
    if fleet.memory is None or fleet.memory.folder.is_dir():  # otherwise what the devices held is gone
        server.ledger.restore(ledger)
    for round_number in range(first_round, experiment.rounds):
        stop.check(_how_to_resume(directory, f"stopped after {round_number} of {experiment.rounds} rounds"))
        try:
            record = _round(round_number, server, engine, fleet)
            directory.log(record)
            directory.write_checkpoint(server.model.state_dict(), round_number + 1, server.ledger.state())
            if watch is not None:
                watch(record)
        except KeyboardInterrupt as error:
            number = error.signal_number if isinstance(error, Interrupted) else signal.SIGINT
            message = _how_to_resume(directory, f"stopped in round {round_number + 1} of {experiment.rounds}")
            raise Interrupted(message, number) from None
    metrics = directory.metrics
    if metrics[-1]["test_accuracy"] is None:  # it was not the last round when it was run
        metrics[-1] |= _scored(_evaluate(server.model, fleet))
    summary = summarize(metrics, server.model)
    summary |= {"classes": classes, "image_shape": list(image_shape)}
    directory.finish(server.model.state_dict(), summary)
    return directory


def _how_to_resume(directory: Run, what: str) -> str:
    return f"{what}; 'fedmef run --resume {directory.path}' goes on with it"


def _round(round_number: int, server: Server, engine: Engine, fleet: Fleet) -> Record:
    experiment, started = fleet.experiment, time.perf_counter()
    plan = server.method.plan(round_number)
    collected = collect(experiment, plan, server, engine)
    train_loss = server.absorb(collected.updates, plan)

    comparable = plan.adjusts and not server.method.devices_adjust
    before = _evaluate(server.model, fleet) if comparable else None
    adjustment = server.adjust(plan)
    last = round_number + 1 == experiment.rounds
    due = plan.adjusts or last or (round_number + 1) % experiment.evaluate_every == 0
    score = _evaluate(server.model, fleet) if due else None
    return {
        "round": round_number,
        "train_loss": train_loss if math.isfinite(train_loss) else None,
        **_scored(score),
        "learning_rate": plan.learning_rate,
        "bytes_down": collected.bytes_down,
        "bytes_up": collected.bytes_up,
        "seconds": time.perf_counter() - started,
        "devices": collected.devices,
        "device_reports": [asdict(report) for report in collected.reports],
        "lost": collected.lost,
        "rejected": collected.rejected,
        "attempts": collected.attempts,
        "epsilon": spent_epsilon(experiment, round_number + 1),
        "active_weights": sum(server.active.values()),
        "adjusted": adjustment is not None and adjustment.exchanged > 0,
        "accuracy_before_adjustment": before and before.accuracy,
        "accuracy_after_adjustment": score.accuracy if score and comparable else None,
        "exchanged_weights": adjustment and adjustment.exchanged,
        "dropped_magnitude": adjustment and adjustment.dropped_magnitude,
    }


def _scored(score: Score | None) -> Record:
    return {
        "test_accuracy": score and score.accuracy,
        "test_loss": score.loss if score and math.isfinite(score.loss) else None,
    }


def summarize(metrics: list[Record], model: nn.Module) -> Record:
    """A run's result in a few numbers."""
    accuracies = [record["test_accuracy"] for record in metrics if record["test_accuracy"] is not None]
    layers = sparse_layers(model)
    return {
        "test_accuracy": accuracies[-1],
        "best_test_accuracy": max(accuracies),
        "test_loss": metrics[-1]["test_loss"],
        "rounds": len(metrics),
        "adjustments": sum(record["adjusted"] for record in metrics),
        "bytes_down": sum(record["bytes_down"] for record in metrics),
        "bytes_up": sum(record["bytes_up"] for record in metrics),
        "seconds": sum(record["seconds"] for record in metrics),
        "lost_updates": sum(len(record["lost"]) for record in metrics),
        "rejected_updates": sum(len(record["rejected"]) for record in metrics),
        "epsilon": metrics[-1]["epsilon"],
        "repeated_attempts": sum(record["attempts"] - 1 for record in metrics),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "parameters_if_dense": sum(parameter.numel() for parameter in model.parameters())
        + sum(layer.geometry.size - layer.active_count for layer in layers.values()),
        "layers": {
            name: {"active": layer.active_count, "size": layer.geometry.size}
            for name, layer in layers.items()
        },
        "fedmef": version("fedmef"),
        "torch": torch.__version__,
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for PyTorch: with more, sums are added up in another order, and bits differ."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _evaluate(model: nn.Module, fleet: Fleet) -> Score:
    return evaluate(model, fleet.dataset.test, fleet.dataset.statistics(), fleet.experiment.device)


def _load(model: nn.Module, state: dict[str, Tensor], directory: Run) -> None:
    try:
        build_method(directory.experiment).load(model, state)
    except (RuntimeError, KeyError, UserError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{directory.path} is damaged: its tensors do not fit its configuration ({reason[:200]})"
        ) from None


def new_directory(experiment: Experiment) -> Path:
    """A directory under `runs/` that is not there yet, named after the time and the experiment."""
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{experiment.method}-{experiment.dataset}".replace(":", "-")
    path = Path("runs") / name
    number = 2
    while path.exists():
        path = path.with_name(f"{name}-{number}")
        number += 1
    return path
