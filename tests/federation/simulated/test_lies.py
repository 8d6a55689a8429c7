"""Injected liars: what they say, by hand."""

from pathlib import Path

import numpy as np
import pytest

from fedmef.experiment.faults import LIES, Faults
from fedmef.federation.simulated.lies import told
from fedmef.methods import Extras, Job, Update
from fedmef.sparsity.growth import GrowthScores
from fedmef.wire.broadcast import encode_broadcast
from fedmef.wire.container import checksum_of
from fedmef.wire.store import Store
from fedmef.wire.update import decode_update, encode_update
from tests.runs.written import NETWORK, a_model, a_state

JOB = Job(method="fedmef", round=4, seed=0, learning_rate=0.25, initial_rate=0.5)
MESSAGE = encode_broadcast(a_model(), JOB)
GROWTH = {"out": GrowthScores(np.array([1, 2]), np.array([0.5, -0.5], dtype=np.float32))}
TRUE = Update(
    3, 10, 0.5, {name: a_state()[name] for name in NETWORK.floats}, Extras(GROWTH), 4, checksum_of(MESSAGE)
)


def lie(kind: str, folder: Path, truth: Update = TRUE) -> Update:
    return decode_update(told(kind, 3, MESSAGE, encode_update(truth, NETWORK), Store(folder)), NETWORK)


@pytest.mark.parametrize(("kind", "value"), [("zeros", 0.0), ("huge", 1e30), ("largest", 3.4e38)])
def test_weights_are_all_the_same(tmp_path: Path, kind: str, value: float) -> None:
    told_weights = lie(kind, tmp_path).weights
    assert all(np.array_equal(array, np.full(2, value, np.float32)) for array in told_weights.values())
    assert lie(kind, tmp_path).samples == (10_000 if kind == "zeros" else 10)


def test_gradients_are_forged_and_nothing_else(tmp_path: Path) -> None:
    forged = lie("forge", tmp_path)
    assert forged.extras.growth["out"].gradients.tolist() == [np.float32(1e30)] * 2
    assert forged.extras.growth["out"].positions.tolist() == [1, 2]
    assert forged.weights["out.values"].tolist() == TRUE.weights["out.values"].tolist()


def test_an_impostor_says_that_it_is_another_device(tmp_path: Path) -> None:
    assert (lie("impostor", tmp_path).device, lie("impostor", tmp_path).samples) == (4, 10)


def test_a_replay_is_the_first_answer_ever(tmp_path: Path) -> None:
    first, later = encode_update(TRUE, NETWORK), encode_update(Update(3, 9, 0.1, {}, Extras()), NETWORK)
    for answer in (first, later):
        assert told("replay", 3, MESSAGE, answer, Store(tmp_path / "held")) == first
    assert told("replay", 4, MESSAGE, later, Store(tmp_path / "held")) == later


def test_every_lie_can_be_planned() -> None:
    for kind in LIES:
        assert Faults.parse(f"{kind}@2:3").of(0, 2, 0, 3) == kind
