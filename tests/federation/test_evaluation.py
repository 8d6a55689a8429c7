import math
from collections.abc import Mapping
from typing import cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedmef.data import Split
from fedmef.device.backend import Backend
from fedmef.errors import UserError
from fedmef.federation.evaluation import BATCH_SIZE, Score, accuracy_of_devices, evaluate, moderate_batch
from fedmef.sparsity.arrays import Array, Floats
from fedmef.sparsity.network import INPUT, Input, Network
from fedmef.sparsity.operations import Flatten
from tests.runs.written import a_state


class Answering:
    """A backend whose logits are a table: the first pixel of an image says which row."""

    def __init__(self, logits: list[list[float]]) -> None:
        self.logits = np.array(logits, dtype=np.float32)
        self.loaded: list[Mapping[str, Array]] = []
        self.batches: list[int] = []

    def load(self, state: Mapping[str, Array], seed: int = 0) -> None:
        self.loaded.append(state)

    def predict(self, images: Array) -> Floats:
        self.batches.append(len(images))
        rows: Floats = self.logits[images[:, 0, 0, 0]]
        return rows


def split(rows: list[int], labels: list[int]) -> Split:
    images = np.array(rows, dtype=np.uint8).reshape(-1, 1, 1, 1)
    return Split(images, np.array(labels, dtype=np.int64))


def score(answering: Answering, samples: Split) -> Score:
    return evaluate(cast(Backend, answering), a_state(), samples)


def test_accuracy_and_loss_by_hand() -> None:
    """Logits 0 and log 3 are probabilities 1/4 and 3/4."""
    backend = Answering([[0.0, math.log(3)], [0.0, 0.0]])
    result = score(backend, split([0, 0, 1, 0], [1, 1, 0, 0]))
    assert result.accuracy == 0.75  # of equal logits, the first
    expected = (2 * math.log(4 / 3) + math.log(2) + math.log(4)) / 4
    assert result.loss == pytest.approx(expected, rel=1e-6)
    assert [list(state) for state in backend.loaded] == [list(a_state())]


def test_every_sample_counts_once_in_batches() -> None:
    count = 2 * BATCH_SIZE + 3
    backend = Answering([[1.0, 0.0], [0.0, 1.0]])
    rows = [number % 2 for number in range(count)]
    result = score(backend, split(rows, rows))
    assert backend.batches == [BATCH_SIZE, BATCH_SIZE, 3]
    assert result.accuracy == 1.0
    assert result.loss == pytest.approx(math.log(1 + math.exp(-1)), rel=1e-6)


def test_the_loss_is_pytorchs_cross_entropy_also_where_exp_would_overflow() -> None:
    chance = np.random.default_rng(0)
    logits = (chance.normal(size=(40, 7)) * 10.0 ** chance.integers(-2, 5, size=(40, 1))).astype(np.float32)
    labels = chance.integers(7, size=40)
    expected = F.cross_entropy(torch.from_numpy(logits).double(), torch.from_numpy(labels))
    result = score(Answering(logits.tolist()), split(list(range(40)), labels.tolist()))
    assert result.loss == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
def test_a_network_that_diverged_has_a_score_too(wrong: float) -> None:
    result = score(Answering([[wrong, 0.0]]), split([0, 0], [0, 1]))
    assert 0 <= result.accuracy <= 1
    assert not result.loss < 1e300  # infinite, or not a number


def test_a_strangers_network_is_evaluated_in_moderate_batches() -> None:
    def network(side: int) -> Network:
        steps = (Flatten(name="flat", inputs=(INPUT,)),)
        return Network(Input((1, side, side), (0.5,), (0.5,)), steps)

    assert moderate_batch(network(8)) == 256
    assert moderate_batch(network(2048)) == 2**27 // (2 * 2048**2)
    with pytest.raises(UserError, match="at most"):
        moderate_batch(network(10_000))


def test_a_device_may_expect_the_accuracy_of_the_classes_that_it_has() -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    shares = [np.array([0, 1]), np.array([0, 2, 3, 3]), np.array([4, 0]), np.array([4, 5])]
    assert accuracy_of_devices([1.0, 0.5, None], labels, shares) == [1.0, 0.625, 1.0]
    assert accuracy_of_devices([1.0, 0.5, None], labels, []) == []
