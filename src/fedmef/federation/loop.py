"""The loop: rounds until the end, each written down before the next begins."""

import hashlib
import math
import signal
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import fedmef
from fedmef.device.backend import backend_for, describe_backend
from fedmef.device.choice import KERNELS
from fedmef.errors import FedmefError, Interrupted
from fedmef.federation.engines.base import Engine
from fedmef.federation.evaluation import Score, accuracy_of_devices, constant_guess, evaluate
from fedmef.federation.module import as_module
from fedmef.federation.own_metrics import find_metrics
from fedmef.federation.preparation import Prepared
from fedmef.federation.round import play_round
from fedmef.federation.server import Server
from fedmef.federation.update_checks import UpdateChecks
from fedmef.runs.callbacks import Callback, tell_of_round
from fedmef.runs.directory import Run
from fedmef.runs.records import Finished, Round, Summary, finite
from fedmef.runs.signals import StopRequest
from fedmef.sparsity.arrays import Array, Integers
from fedmef.wire.job import CROSS_ENTROPY


def federate(
    directory: Run,
    prepared: Prepared,
    engine: Engine,
    callbacks: Sequence[Callback],
    stop: StopRequest,
    *,
    first_round: int = 0,
    ledger: Mapping[str, Array] | None = None,
    moments: Mapping[str, Array] | None = None,
    shares: Sequence[Integers] = (),
) -> Run:
    """Run an experiment from a round on, with the model that it has then, to its end.

    `ledger` and `moments` are what a checkpoint has besides the model; `shares` are the devices' samples, if
    they are not elsewhere.
    """
    experiment, dataset = prepared.experiment, prepared.dataset
    samples = [len(share) for share in shares] or None
    server = Server(experiment, prepared.model, UpdateChecks.of(experiment, samples))
    server.ledger.restore(ledger or {})
    server.optimizer.restore(moments or {})
    backend, metrics = backend_for(experiment, prepared.model.network), find_metrics(experiment)

    latest: Score | None = None

    def score() -> Score:
        nonlocal latest
        latest = evaluate(backend, server.model.state, dataset.test, metrics=metrics)
        return latest

    before = directory.rounds if first_round else []
    best = max((record.test_accuracy or 0.0 for record in before), default=-1.0)
    for callback in callbacks:
        callback.run_begins(directory)
    stopped = ""
    for round_number in range(first_round, experiment.rounds):
        stop.check(_how_to_resume(directory, f"stopped after {round_number} of {experiment.rounds} rounds"))
        try:
            record = Round.of(play_round(round_number, server, engine, score))
            directory.log(record)
            if experiment.keep_best and (accuracy := record.test_accuracy or 0.0) > best:
                directory.write_best(server.model.state)
                best = accuracy
            kept = server.ledger.state(), server.optimizer.state()
            directory.write_checkpoint(server.model.state, round_number + 1, *kept)
            stopped = tell_of_round(callbacks, record, partial(as_module, experiment, server.model))
            if stopped:
                break
        except FedmefError:
            directory.check_there()  # if that is why, it is said
            raise
        except KeyboardInterrupt as error:
            number = error.signal_number if isinstance(error, Interrupted) else signal.SIGINT
            message = _how_to_resume(directory, f"stopped in round {round_number + 1} of {experiment.rounds}")
            raise Interrupted(message, number) from None
    rounds = directory.rounds
    last = score() if latest is None or rounds[-1].test_accuracy is None else latest
    if rounds[-1].test_accuracy is None:  # it was not the last round when it was run
        known = {"test_accuracy": last.accuracy, "test_loss": finite(last.loss), "metrics": last.metrics}
        rounds[-1] = rounds[-1].model_copy(update=known)
        if experiment.keep_best and last.accuracy > best:
            directory.write_best(server.model.state)
    guess = constant_guess(dataset.test)
    finished = Finished(
        rounds=rounds,
        model=server.model,
        versions=versions(),
        guess_accuracy=guess.accuracy,
        guess_loss=guess.loss if experiment.loss == CROSS_ENTROPY else math.inf,  # logits may mean anything
        test_samples=len(dataset.test),
        class_accuracy=last.by_class,
        device_accuracy=accuracy_of_devices(last.by_class, dataset.train.labels, shares),
        backend=": ".join(filter(None, (describe_backend(backend), prepared.choice.reason))),
        stopped=stopped if len(rounds) < experiment.rounds else "",
    )
    directory.finish(server.model.state, Summary.of(finished), server.optimizer.state())
    for callback in callbacks:
        callback.run_ends(directory)
    return directory


def versions() -> dict[str, str]:
    """Of what decides a run's bits."""
    found = {}
    for package in ("fedmef", "numpy", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return {**found, "source": _source_digest()}


@cache
def _source_digest() -> str:
    """Of all of fedmef's code, the compiled too: between two releases its version says nothing."""
    digest = hashlib.blake2b(digest_size=8)
    files = sorted(Path(fedmef.__file__).parent.rglob("*.py"))
    if (kernels := find_spec(KERNELS)) is not None and kernels.origin is not None:
        files.append(Path(kernels.origin))
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _how_to_resume(directory: Run, what: str) -> str:
    return f"{what}; {directory.how_to_resume}"
