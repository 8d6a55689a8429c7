"""The loop: rounds until the end, each written down before the next begins."""

import hashlib
import signal
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fedmef
from fedmef.device.backend import backend_for
from fedmef.errors import Interrupted
from fedmef.federation.engines.base import Engine
from fedmef.federation.evaluation import Score, constant_guess, evaluate
from fedmef.federation.preparation import Prepared
from fedmef.federation.round import play_round
from fedmef.federation.server import Server
from fedmef.federation.update_checks import UpdateChecks
from fedmef.runs.directory import Run
from fedmef.runs.records import Finished, Round, Summary, finite
from fedmef.runs.signals import StopRequest
from fedmef.runs.watchers import Watcher
from fedmef.sparsity.arrays import Array


def federate(
    directory: Run,
    prepared: Prepared,
    engine: Engine,
    watchers: Sequence[Watcher],
    stop: StopRequest,
    *,
    first_round: int = 0,
    ledger: Mapping[str, Array] | None = None,
    most_samples: int | None = None,
) -> Run:
    """Run an experiment from a round on, with the model that it has then, to its end."""
    experiment, dataset = prepared.experiment, prepared.dataset
    server = Server(experiment, prepared.model, UpdateChecks(most_samples, experiment.max_update_norm))
    server.ledger.restore(ledger or {})
    backend = backend_for(experiment, prepared.model.network)

    def score() -> Score:
        return evaluate(backend, server.model.state, dataset.test)

    for watcher in watchers:
        watcher.run_begins(directory)
    for round_number in range(first_round, experiment.rounds):
        stop.check(_how_to_resume(directory, f"stopped after {round_number} of {experiment.rounds} rounds"))
        try:
            record = Round.of(play_round(round_number, server, engine, score))
            directory.log(record)
            directory.write_checkpoint(server.model.state, round_number + 1, server.ledger.state())
            for watcher in watchers:
                watcher.round_done(record)
        except KeyboardInterrupt as error:
            number = error.signal_number if isinstance(error, Interrupted) else signal.SIGINT
            message = _how_to_resume(directory, f"stopped in round {round_number + 1} of {experiment.rounds}")
            raise Interrupted(message, number) from None
    rounds = directory.rounds
    if rounds[-1].test_accuracy is None:  # it was not the last round when it was run
        last = score()
        known = {"test_accuracy": last.accuracy, "test_loss": finite(last.loss)}
        rounds[-1] = rounds[-1].model_copy(update=known)
    guess = constant_guess(dataset.test)
    finished = Finished(rounds, server.model, versions(), guess.accuracy, guess.loss, len(dataset.test))
    directory.finish(server.model.state, Summary.of(finished))
    for watcher in watchers:
        watcher.run_ends(directory)
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
    """Of all of fedmef's own code: between two releases its version says nothing."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(Path(fedmef.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _how_to_resume(directory: Run, what: str) -> str:
    return f"{what}; 'fedmef run --resume {directory.path}' continues it"
