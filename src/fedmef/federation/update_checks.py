"""What an update must be before it may touch the model. Nothing that a device sends is trusted."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedmef.errors import MessageError, RejectedError
from fedmef.experiment.settings import Experiment
from fedmef.federation.aggregation import difference_norm
from fedmef.federation.plausibility import FEWEST_TO_COMPARE, implausible, lower_median
from fedmef.methods import Method
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import Model
from fedmef.wire.job import Job
from fedmef.wire.update import Update, decode_update

LONGEST_REASON = 500
ABSURD = 10.0  # times as many samples as can be believed

# Of a message's header: all but the arrays' names, and what one array takes besides its name.
HEADER_BYTES, ENTRY_BYTES = 2048, 160


@dataclass(frozen=True)
class Rejection:
    """A device whose update was not used, and why.

    Attributes:
        diverged: its numbers are not finite; when all devices' are, the learning rate is to blame.
    """

    device: int
    reason: str
    diverged: bool


class DivergedError(RejectedError):
    """An update whose numbers are not finite."""


@dataclass(frozen=True)
class UpdateChecks:
    """The bounds that every update of a run must keep.

    Attributes:
        samples: how many each device has, where the server knows: then nobody's word counts.
        most_samples: no device can have more, or None.
        samples_ratio: nor more than this many times the median of what a round's devices claim; 0: any.
        largest_norm: of the difference between its weights and those it was sent, or None.
        norm_ratio: how many times the round's median an update may change; 0: any.
    """

    samples: Sequence[int] | None = None
    most_samples: int | None = None
    samples_ratio: float = 0.0
    largest_norm: float | None = None
    norm_ratio: float = 0.0

    @classmethod
    def of(cls, experiment: Experiment, samples: Sequence[int] | None = None) -> "UpdateChecks":
        """Those that an experiment asks for.

        A private round compares nobody with others: whether one device's update counts must not depend on
        whether another is there. Clipping bounds each, and samples do not count there.
        """
        private = experiment.noise_multiplier > 0
        return cls(
            samples=samples,
            most_samples=experiment.max_samples,
            samples_ratio=0.0 if private else experiment.max_samples_ratio,
            largest_norm=experiment.max_update_norm,
            norm_ratio=0.0 if private else experiment.max_norm_ratio,
        )

    def accept(
        self, answer: bytes, device: int, method: Method, model: Model, job: Job, answered: str
    ) -> Update | Rejection:
        """The update in a device's answer to the message of this checksum, or why it is not used."""
        try:
            most = largest_answer(method, model, job)
            if len(answer) > most:
                raise RejectedError(f"device {device} sent {len(answer):,} bytes, more than {most:,}")
            update = decode_update(answer, model.network)
            self.check(update, device, method, model, job, answered)
        except Exception as error:  # whatever bytes a device may think of, they cost its own update only
            known = isinstance(error, MessageError | RejectedError)
            reason = str(error) if known else f"{type(error).__name__}: {error}"
            return Rejection(device, reason[:LONGEST_REASON], isinstance(error, DivergedError))
        return update

    def check(
        self, update: Update, device: int, method: Method, model: Model, job: Job, answered: str
    ) -> None:
        """Raise `RejectedError` for an update that would ruin the model."""
        who = f"device {device}"
        if update.device != device:
            raise RejectedError(f"{who} says that it is device {update.device}")
        if update.answers != answered:
            raise RejectedError(
                f"{who} answers another message than it was sent, of round {update.round + 1}: a replay"
            )
        if update.samples < 1:
            raise RejectedError(f"{who} says that it has {update.samples} samples")
        if not math.isfinite(update.loss):
            raise DivergedError(f"{who} sent a loss that is not finite: its training diverged")
        expected = expected_weights(method, model)
        _check_weights(who, update.weights, expected)
        if self.largest_norm is not None:
            norm = difference_norm(update.weights, expected)
            if norm > self.largest_norm:
                raise RejectedError(
                    f"{who} sent an update of norm {norm:.3g}, above max_update_norm = {self.largest_norm:g}"
                )
        method.check(model, update, job)

    def compare(self, updates: Sequence[Update], method: Method, model: Model, job: Job) -> list[Rejection]:
        """Those of a round's updates that are too far from the others."""
        absurd = self._absurd_claims(updates)
        if not self.norm_ratio:
            return absurd
        others = [update for update in updates if update.device not in {one.device for one in absurd}]
        found = implausible(others, model, expected_weights(method, model), job, self.norm_ratio)
        return absurd + [Rejection(device, why.reason, why.diverged) for device, why in found.items()]

    def weigh(self, updates: Sequence[Update]) -> tuple[list[Update], dict[int, str]]:
        """The updates with the samples that they count for; and the devices that say something else."""
        counted = [replace(update, samples=self._counted(update, updates)) for update in updates]
        doubts = {
            update.device: f"says that it has {update.samples:,} samples, and counts for {other.samples:,}"
            for update, other in zip(updates, counted, strict=True)
            if update.samples != other.samples
        }
        return counted, doubts

    def _absurd_claims(self, updates: Sequence[Update]) -> list[Rejection]:
        """Devices that claim so much that their weights are not trusted either."""
        if not self.samples_ratio or (self.samples is None and len(updates) < FEWEST_TO_COMPARE):
            return []
        most = {
            update.device: ABSURD * self.samples_ratio * self._typical(update, updates) for update in updates
        }
        return [
            Rejection(
                update.device,
                f"device {update.device} says that it has {update.samples:,} samples, and no more than "
                f"{most[update.device]:,.0f} are plausible (max_samples_ratio = {self.samples_ratio:g})",
                diverged=False,
            )
            for update in updates
            if update.samples > most[update.device]
        ]

    def _counted(self, update: Update, updates: Sequence[Update]) -> int:
        """What cannot be believed counts for a typical device's: to claim more must never be worth it."""
        typical = self._typical(update, updates)
        if self.samples is not None:
            return typical
        most = math.inf if self.most_samples is None else self.most_samples
        if self.samples_ratio:
            most = min(most, self.samples_ratio * typical)
        return update.samples if update.samples <= most else int(min(typical, most))

    def _typical(self, update: Update, updates: Sequence[Update]) -> int:
        """What a device has, where that is known; otherwise the median of what all claim."""
        if self.samples is not None:
            return self.samples[update.device]
        return int(lower_median(other.samples for other in updates))


def expected_weights(method: Method, model: Model) -> dict[str, Array]:
    """The arrays of the model that every update has, by name."""
    withheld = method.withheld(model.network)
    return {name: model.state[name] for name in model.network.floats if name not in withheld}


def largest_answer(method: Method, model: Model, job: Job) -> int:
    """No honest answer has more bytes: arrays as wide as the server's, and names and numbers around them."""
    expected = expected_weights(method, model)
    names = [*expected, *model.network.sparse_layers] * 3  # of extras too
    header = HEADER_BYTES + sum(len(json.dumps(name)) + ENTRY_BYTES for name in names)
    return header + sum(array.nbytes for array in expected.values()) + method.extra_bytes(model, job)


def _check_weights(who: str, weights: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    if unknown := sorted(weights.keys() - expected.keys()):
        raise RejectedError(f"{who} sent {unknown[0][:80]!r}, which the model does not have")
    for name, array in expected.items():
        sent = weights.get(name)
        if sent is None or sent.shape != array.shape or sent.dtype != array.dtype:
            raise RejectedError(f"{who} sent no {name} of shape {list(array.shape)} and type {array.dtype}")
        if not np.isfinite(sent).all():
            raise DivergedError(f"{who} sent weights that are not finite ({name}): its training diverged")
        if name.endswith("running_var") and (sent < 0).any():
            raise RejectedError(f"{who} sent a negative variance ({name})")
