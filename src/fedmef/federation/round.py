"""One round, from the job to the adjusted model: collect, absorb, adjust, evaluate."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fedmef.federation.collection import Collected, collect
from fedmef.federation.engines.base import Engine
from fedmef.federation.evaluation import Score
from fedmef.federation.privacy import spent_epsilon
from fedmef.federation.server import Server
from fedmef.methods.base import Adjustment
from fedmef.wire.job import Job


@dataclass(frozen=True, eq=False)
class Happened:
    """What happened in a round; its record is taken from this.

    Attributes:
        train_loss: mean over the devices that answered, by their samples.
        before: the model's score just before an adjustment, where there is one that compares.
        score: the model's score at the end of the round, if it was evaluated.
        active_weights: of all sparse layers.
        epsilon: what privacy has cost so far; None without noise.
        backend: what executed the network.
    """

    job: Job
    collected: Collected
    train_loss: float
    before: Score | None
    adjustment: Adjustment | None
    score: Score | None
    active_weights: int
    epsilon: float | None
    seconds: float
    backend: Literal["torch", "native"] = "torch"

    @property
    def adjusted(self) -> bool:
        """Whether weights were exchanged."""
        return self.adjustment is not None and self.adjustment.exchanged > 0


def play_round(round_number: int, server: Server, engine: Engine, evaluate: Callable[[], Score]) -> Happened:
    """Let the devices train, and make their answers the new model; `evaluate` scores the server's model."""
    experiment, started = server.experiment, time.perf_counter()
    job = server.job(round_number)
    collected = collect(experiment, job, server, engine)
    absorbed, train_loss = server.absorb(collected.updates, job)
    before = evaluate() if job.adjusts and not server.method.devices_adjust else None
    adjustment = server.adjust(absorbed, job)
    last = round_number + 1 == experiment.rounds
    due = job.adjusts or last or (round_number + 1) % experiment.evaluate_every == 0
    return Happened(
        job=job,
        collected=collected,
        train_loss=train_loss,
        before=before,
        adjustment=adjustment,
        score=evaluate() if due else None,
        active_weights=sum(server.active.values()),
        epsilon=spent_epsilon(experiment, round_number + 1),
        seconds=time.perf_counter() - started,
        backend="torch" if experiment.backend == "auto" else experiment.backend,
    )
