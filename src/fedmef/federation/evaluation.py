"""How good a model is on a split."""

import math
from dataclasses import dataclass

import numpy as np

from fedmef.data.dataset import Split
from fedmef.device.backend import Backend
from fedmef.errors import UserError
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
    """Share of samples that are classified correctly, and mean cross-entropy."""

    accuracy: float
    loss: float


def constant_guess(split: Split) -> Score:
    """What knowing nothing but how frequent each class is would score, at best."""
    shares = np.bincount(split.labels) / len(split)
    return Score(float(shares.max()), float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum()))


def evaluate(backend: Backend, state: State, split: Split, batch_size: int = BATCH_SIZE) -> Score:
    """Score a state of the backend's network on all samples of a split."""
    backend.load(state)
    correct, loss = 0, 0.0
    for start in range(0, len(split), batch_size):
        logits = backend.predict(split.images[start : start + batch_size]).astype(np.float64)
        labels = split.labels[start : start + batch_size]
        correct += int((logits.argmax(1) == labels).sum())
        highest = logits.max(1)
        with np.errstate(invalid="ignore"):  # a network that diverged gives infinities
            log_sums = highest + np.log(np.exp(logits - highest[:, None]).sum(1))
        loss += float((log_sums - logits[np.arange(len(labels)), labels]).sum())
    return Score(correct / len(split), loss / len(split))
