"""How good a model is on a split."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedmef.data.dataset import Split
from fedmef.device.backend import Backend
from fedmef.errors import UserError
from fedmef.federation.own_metrics import Metric, Values, measured
from fedmef.sparsity.arrays import Integers
from fedmef.sparsity.model import State
from fedmef.sparsity.network import Network

BATCH_SIZE = 256
MOST_VALUES = 2**27  # of all results of a batch together


def moderate_batch(network: Network) -> int:
    """Images at once of a network that may be anybody's; raises `UserError` where even one is too much."""
    values = sum(map(math.prod, network.shapes.values()))
    if values > MOST_VALUES:
        raise UserError(
            f"an image takes {values:,} values in this network: at most {MOST_VALUES:,} are tried"
        )
    return min(BATCH_SIZE, MOST_VALUES // values)


@dataclass(frozen=True)
class Score:
    """Share of samples that are classified correctly, and mean cross-entropy.

    Attributes:
        by_class: the share of each class's own samples; None for a class that has none.
        metrics: what the user's own metrics gave.
    """

    accuracy: float
    loss: float
    by_class: tuple[float | None, ...] = field(default=(), compare=False, repr=False)
    metrics: Values = field(default_factory=dict, compare=False)


def constant_guess(split: Split) -> Score:
    """What knowing nothing but how frequent each class is would score, at best."""
    shares = np.bincount(split.labels) / len(split)
    return Score(float(shares.max()), float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum()))


def evaluate(
    backend: Backend,
    state: State,
    split: Split,
    batch_size: int = BATCH_SIZE,
    metrics: Mapping[str, Metric] | None = None,
) -> Score:
    """Score a state of the backend's network on all samples of a split.

    Only for metrics the logits of all samples are in memory at once.
    """
    backend.load(state)
    kept = np.empty((len(split), backend.network.classes), np.float32) if metrics else None
    hits, loss, classes = np.zeros(len(split), dtype=np.bool_), 0.0, 0
    for start in range(0, len(split), batch_size):
        logits = backend.predict(split.images[start : start + batch_size]).astype(np.float64)
        labels = split.labels[start : start + batch_size]
        if kept is not None:
            kept[start : start + batch_size] = logits
        hits[start : start + batch_size], classes = logits.argmax(1) == labels, logits.shape[1]
        highest = logits.max(1)
        with np.errstate(invalid="ignore"):  # a network that diverged gives infinities
            log_sums = highest + np.log(np.exp(logits - highest[:, None]).sum(1))
        loss += float((log_sums - logits[np.arange(len(labels)), labels]).sum())
    right, counts = (np.bincount(labels, minlength=classes) for labels in (split.labels[hits], split.labels))
    by_class = (int(good) / int(count) if count else None for good, count in zip(right, counts, strict=True))
    own = measured(metrics, kept, split.labels) if metrics and kept is not None else {}
    return Score(int(hits.sum()) / len(split), loss / len(split), tuple(by_class), own)


def accuracy_of_devices(
    by_class: Sequence[float | None], labels: Integers, shares: Sequence[Integers]
) -> list[float]:
    """What each device may expect: the accuracy of every class, weighted by how often the device has it.

    No device has test data of its own; these are the common ones, mixed as the device's training data are.
    Classes without test data are left out, and so are devices that have no other.
    """
    known = np.array([accuracy is not None for accuracy in by_class])
    accuracies = np.array([accuracy or 0.0 for accuracy in by_class])
    expected = []
    for share in shares:
        counts = np.bincount(labels[share], minlength=len(known)) * known
        if counts.any():
            expected.append(float((counts * accuracies).sum() / counts.sum()))
    return expected
