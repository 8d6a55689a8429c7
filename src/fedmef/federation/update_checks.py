"""What an update must be before it may touch the model. Nothing that a device sends is trusted."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedmef.errors import MessageError, RejectedError
from fedmef.federation.aggregation import difference_norm
from fedmef.methods import Method
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.model import Model
from fedmef.wire.job import Job
from fedmef.wire.update import Update, decode_update

LONGEST_REASON = 500


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
        most_samples: no device can have more, or None when nobody knows.
        largest_norm: of the difference between its weights and those it was sent, or None.
    """

    most_samples: int | None = None
    largest_norm: float | None = None

    def accept(
        self, answer: bytes, device: int, method: Method, model: Model, job: Job
    ) -> Update | Rejection:
        """The update in a device's answer, or why it is not used."""
        try:
            update = decode_update(answer, model.network)
            self.check(update, device, method, model, job)
        except Exception as error:  # whatever bytes a device may think of, they cost its own update only
            known = isinstance(error, MessageError | RejectedError)
            reason = str(error) if known else f"{type(error).__name__}: {error}"
            return Rejection(device, reason[:LONGEST_REASON], isinstance(error, DivergedError))
        return update

    def check(self, update: Update, device: int, method: Method, model: Model, job: Job) -> None:
        """Raise `RejectedError` for an update that would ruin the model."""
        who = f"device {device}"
        if update.device != device:
            raise RejectedError(f"{who} says that it is device {update.device}")
        if update.samples < 1 or (self.most_samples is not None and update.samples > self.most_samples):
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


def expected_weights(method: Method, model: Model) -> dict[str, Array]:
    """The arrays of the model that every update has, by name."""
    withheld = method.withheld(model.network)
    return {name: model.state[name] for name in model.network.floats if name not in withheld}


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
