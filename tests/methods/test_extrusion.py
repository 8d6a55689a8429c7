"""Budget-aware extrusion: what is marked, the learning rate, and the pull."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmef.device.backend import Step
from fedmef.methods.extrusion import BudgetAwareRate, Extrusion, Marked, mark_smallest
from fedmef.nn.backend import TorchBackend
from fedmef.sparsity.model import Model
from fedmef.sparsity.operations import Normalization
from tests.methods.small_models import integers, layer_model, two_layers


def small_model() -> Model:
    return layer_model([0, 2, 5, 7], [0.5, -0.1, 0.2, -3.0])


def test_the_smallest_active_weights_are_marked_and_never_pruned_ones() -> None:
    marked = mark_smallest(lambda name: small_model(), {"0": 2})
    assert sorted(marked.places["0"].tolist()) == [1, 2]  # −0.1 and 0.2
    assert marked.norm == pytest.approx(math.sqrt(0.1**2 + 0.2**2))


def test_the_two_largest_of_a_normalised_filter_are_not_marked() -> None:
    """The server would not drop them."""
    model = layer_model([0, 1, 4, 5, 6], [0.1, -0.1, 3.0, -2.0, -1.0], normalization=Normalization())
    marked = mark_smallest(lambda name: model, {"0": 3})
    assert marked.places["0"].tolist() == [4]
    assert marked.norm == 1.0


def test_the_norm_is_that_of_all_layers_together() -> None:
    model = two_layers(([0, 1], [3.0, 9.0]), ([2, 3], [-5.0, 4.0]))
    marked = mark_smallest(lambda name: model, {"0": 1, "1": 1})
    assert {name: places.tolist() for name, places in marked.places.items()} == {"0": [0], "1": [1]}
    assert marked.norm == pytest.approx(5.0)


def test_a_model_without_marked_weights_has_no_norm() -> None:
    assert mark_smallest(lambda name: small_model(), {}).norm == 0.0


def test_the_rate_starts_high_and_ends_at_the_ordinary_one() -> None:
    rate = BudgetAwareRate(initial=1.0, ordinary=0.1, budget=10)
    norm = 2.0
    sigmoid = 1 / (1 + math.exp(-norm))
    assert rate.value(0, norm) == pytest.approx(2 * sigmoid - 1)
    assert rate.value(4, norm) == pytest.approx((20 - 8) / (20 - 4) * (2 * sigmoid - 1))
    assert rate.value(10, norm) == 0.1


def test_the_rate_is_the_ordinary_one_once_the_weights_are_empty() -> None:
    assert BudgetAwareRate(initial=1.0, ordinary=0.1, budget=10).value(0, 0.0) == 0.1


def test_a_huge_norm_does_not_overflow() -> None:
    assert BudgetAwareRate(initial=1.0, ordinary=0.1, budget=10).value(0, 1e6) == 1.0


@given(
    initial=st.floats(1e-3, 10),
    share=st.floats(0.01, 1),
    budget=st.integers(1, 1000),
    norm=st.floats(0, 1e6),
    data=st.data(),
)
def test_the_rate_is_never_below_the_ordinary_nor_above_the_initial_one(
    initial: float, share: float, budget: int, norm: float, data: st.DataObject
) -> None:
    rate = BudgetAwareRate(initial, initial * share, budget)
    step = data.draw(st.integers(0, budget))
    value = rate.value(step, norm)
    assert initial * share <= value <= initial
    assert value >= rate.value(min(step + 1, budget), norm)


def extrusion(strength: float, initial: float = 0.5, ordinary: float = 0.5) -> Extrusion:
    return Extrusion(
        Marked({"0": integers(1, 2)}, norm=2.0), BudgetAwareRate(initial, ordinary, 10), strength
    )


def test_the_first_step_goes_by_the_norm_on_receipt_and_the_others_by_that_of_the_step_before() -> None:
    schedule = extrusion(0.1, initial=1.0, ordinary=0.05)
    first, _ = schedule.schedule(0, None)
    assert first == pytest.approx(math.tanh(1.0))
    second, pull = schedule.schedule(1, Step(loss=1.0, pulled_norm=0.5))
    assert second == pytest.approx((20 - 2) / (20 - 1) * math.tanh(0.25))
    assert pull.marked is schedule.marked.places
    last, _ = schedule.schedule(9, Step(loss=1.0, pulled_norm=0.0))
    assert last == 0.05


@pytest.mark.parametrize(
    ("strength", "rate", "expected"),
    [
        (0.0, 0.5, 0.0),
        (0.5, 0.5, 0.5),
        (1.0, 0.5, 1.0),
        (100.0, 0.5, 1.0),
        (100.0, 2.0, 0.25),
        (0.2, 2.0, 0.2),
    ],
)
def test_the_pull_is_lambda_and_never_beyond_half_over_the_rate(
    strength: float, rate: float, expected: float
) -> None:
    found, pull = extrusion(strength, rate, rate).schedule(0, None)
    assert found == rate
    assert pull.strength == pytest.approx(expected)


@pytest.mark.parametrize(("strength", "left"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0), (100.0, 0.0)])
def test_a_step_of_the_penalty_empties_a_weight_at_most(strength: float, left: float) -> None:
    model = small_model()
    backend = TorchBackend(model.network)
    backend.load(model.state)
    schedule = Extrusion(mark_smallest(lambda name: model, {"0": 2}), BudgetAwareRate(0.5, 0.5, 10), strength)
    rate, pull = schedule.schedule(0, None)
    black = np.zeros((1, 1, 1, 4), np.uint8)  # no weight learns anything from it
    step = backend.step(black, integers(0), rate, pull)
    expected = model.values("0") * np.array([1, left, left, 1], np.float32)
    np.testing.assert_allclose(backend.state()["0.values"], expected, rtol=1e-6)
    assert step.pulled_norm == pytest.approx(left * math.sqrt(0.05), abs=1e-7)
