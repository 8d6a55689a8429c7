"""How good a model is on a split."""

from dataclasses import dataclass

import numpy as np

from fedmef.data.dataset import Split
from fedmef.device.backend import Backend
from fedmef.sparsity.model import State

BATCH_SIZE = 256


@dataclass(frozen=True)
class Score:
    """Share of samples that are classified correctly, and mean cross-entropy."""

    accuracy: float
    loss: float


def constant_guess(split: Split) -> Score:
    """What knowing nothing but how frequent each class is would score, at best."""
    shares = np.bincount(split.labels) / len(split)
    return Score(float(shares.max()), float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum()))


def evaluate(backend: Backend, state: State, split: Split) -> Score:
    """Score a state of the backend's network on all samples of a split."""
    backend.load(state)
    correct, loss = 0, 0.0
    for start in range(0, len(split), BATCH_SIZE):
        logits = backend.predict(split.images[start : start + BATCH_SIZE]).astype(np.float64)
        labels = split.labels[start : start + BATCH_SIZE]
        correct += int((logits.argmax(1) == labels).sum())
        highest = logits.max(1)
        with np.errstate(invalid="ignore"):  # a network that diverged gives infinities
            log_sums = highest + np.log(np.exp(logits - highest[:, None]).sum(1))
        loss += float((log_sums - logits[np.arange(len(labels)), labels]).sum())
    return Score(correct / len(split), loss / len(split))
