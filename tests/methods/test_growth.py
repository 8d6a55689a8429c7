"""Drop-and-grow on the server, from the devices' largest gradients."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.errors import RejectedError
from fedmef.methods.base import Rules
from fedmef.methods.growth import (
    adjustment_counts,
    average_scores,
    check_growth,
    drop_and_grow_from_averages,
)
from fedmef.nn.backend import TorchBackend
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.model import Model
from fedmef.sparsity.operations import Normalization
from fedmef.wire.job import Job
from fedmef.wire.update import Extras, Update
from tests.methods.small_models import ADJUSTING, MEAN, floats, integers, layer_model, two_layers

STEP = Rules(MEAN.combine, grow_init="step")
VOTES = Rules(MEAN.combine, one_vote_each=True)


def job(rate: float) -> Job:
    return replace(ADJUSTING, adjustment_rate=rate)


def scores(positions: list[int], gradients: list[float]) -> GrowthScores:
    return GrowthScores(integers(*positions), floats(*gradients))


def update(device: int, samples: int, growth: GrowthScores) -> Update:
    return Update(device, samples, 0.0, {}, Extras(growth={"0": growth}))


def small_model() -> Model:
    return layer_model([0, 2, 5, 7], [0.5, -0.1, 0.2, -3.0])


def dense(model: Model) -> dict[int, float]:
    return dict(zip(model.positions("0").tolist(), model.values("0").tolist(), strict=True))


def test_absent_gradients_count_zero_in_the_average() -> None:
    average = average_scores([scores([1, 3], [1.0, 4.0]), scores([3, 6], [-2.0, 8.0])], [0.25, 0.75])
    assert average.positions.tolist() == [1, 3, 6]
    assert average.gradients.tolist() == [0.25, 1.0 - 1.5, 6.0]


def test_gradients_are_averaged_in_double_precision() -> None:
    sent = [scores([4], [1e8]), scores([4], [-1e8]), scores([4], [1.0])]
    assert average_scores(sent, [0.25, 0.25, 0.5]).gradients.tolist() == [0.5]


def test_the_largest_averaged_gradients_grow_and_the_smallest_weights_go() -> None:
    model = small_model()
    updates = [update(0, 1, scores([1, 3], [1.0, 4.0])), update(1, 3, scores([3, 6], [-2.0, 8.0]))]
    adjustment = drop_and_grow_from_averages(model, updates, job(0.5), MEAN)
    # ξ = floor(0.5 · 4) = 2: averages are 0.25 at 1, −0.5 at 3, 6 at 6; −0.1 at 2 and 0.2 at 5 are smallest
    assert dense(model) == {0: 0.5, 3: 0.0, 6: 0.0, 7: -3.0}
    assert adjustment.exchanged == 2
    assert adjustment.dropped_magnitude == pytest.approx(0.15)


def test_arrays_are_replaced_and_never_changed() -> None:
    """A message that is still on its way may hold them."""
    model = small_model()
    held = dict(model.state)
    before = {name: array.copy() for name, array in held.items()}
    drop_and_grow_from_averages(model, [update(0, 1, scores([1, 3], [1.0, 4.0]))], job(0.5), MEAN)
    assert all(np.array_equal(held[name], before[name]) for name in held)
    assert not np.array_equal(model.state["0.mask"], held["0.mask"])


def test_grown_weights_can_start_with_one_step_down_their_averaged_gradient() -> None:
    model = small_model()
    updates = [update(0, 1, scores([1, 3], [1.0, 4.0])), update(1, 3, scores([3, 6], [-2.0, 8.0]))]
    drop_and_grow_from_averages(model, updates, job(0.5), STEP)
    # averages are 0.25 at 1, −0.5 at 3 and 6 at 6, and the rate is 0.01
    assert dense(model) == pytest.approx({0: 0.5, 3: 0.005, 6: -0.06, 7: -3.0})


def test_a_step_is_as_long_as_the_rate_of_the_round() -> None:
    model = small_model()
    fast = replace(job(0.25), learning_rate=0.5)
    drop_and_grow_from_averages(model, [update(0, 1, scores([6], [4.0]))], fast, STEP)
    assert dense(model)[6] == -2.0


def test_an_empty_filter_that_is_not_normalised_grows_at_zero() -> None:
    """It is not dead: its bias and its gradients are there."""
    model = layer_model([4, 5, 6, 7], [0.1, 2.0, 3.0, 4.0])  # nothing in the first filter
    drop_and_grow_from_averages(model, [update(0, 1, scores([1], [1.0]))], job(0.25), MEAN)
    assert dense(model) == {1: 0.0, 5: 2.0, 6: 3.0, 7: 4.0}


def test_under_nsconv_what_is_closest_to_its_filters_mean_goes() -> None:
    # The mean is 1.25: NSConv sees -1.25, -0.25, -0.25, 1.75, so both 1 go although 0 is the smallest.
    model = layer_model([4, 5, 6, 7], [0.0, 1.0, 1.0, 3.0], filters=2, normalization=Normalization())
    drop_and_grow_from_averages(model, [update(0, 1, scores([1, 3], [1.0, -3.0]))], job(0.5), MEAN)
    # -1.25 and 1.75 are left, and centred again; a dead filter began with -0.01 and 0.03, centred too.
    assert dense(model) == pytest.approx({1: -0.02, 3: 0.02, 4: -1.5, 7: 1.5})


def test_grown_weights_are_centred_with_their_filter() -> None:
    model = layer_model([0, 1, 4, 5, 6], [-3.0, 3.0, -1.0, 0.25, 0.75], normalization=Normalization())
    drop_and_grow_from_averages(model, [update(0, 1, scores([2], [1.0]))], job(0.2), MEAN)
    # 0.25 goes, and −1 and 0.75 are centred again; 0 comes between −3 and 3
    assert dense(model) == {0: -3.0, 1: 3.0, 2: 0.0, 4: -0.875, 6: 0.875}


def test_a_normalised_filter_keeps_two_weights_and_fewer_are_exchanged() -> None:
    model = layer_model([0, 1, 4, 5, 6], [-3.0, 3.0, -0.3, 0.1, 0.2], normalization=Normalization())
    adjustment = drop_and_grow_from_averages(
        model, [update(0, 1, scores([2, 3], [1.0, 9.0]))], job(0.4), MEAN
    )
    assert adjustment.exchanged == 1
    assert adjustment.dropped_magnitude == pytest.approx(0.1)
    assert model.positions("0").tolist() == [0, 1, 3, 4, 6]


IMAGES = np.random.default_rng(0).integers(0, 256, (5, 1, 1, 4), dtype=np.uint8)


def outputs(model: Model) -> Array:
    """What every filter gives for every image."""
    backend = TorchBackend(model.network)
    backend.load(model.state)
    return backend.predict(IMAGES)


@pytest.mark.parametrize(
    ("first", "grown"),
    [
        ([], scores([1, 3], [1.0, -3.0])),
        ([2], scores([1, 3], [1.0, -3.0])),
        ([2], scores([3], [4.0])),
    ],
    ids=["no weight", "one weight", "one weight and one more"],
)
def test_a_dead_filter_that_grows_back_lives_afterwards(first: list[int], grown: GrowthScores) -> None:
    rest = [-2.0, 0.1, -0.1, 2.0]
    model = layer_model([*first, 4, 5, 6, 7], [*[0.5] * len(first), *rest], normalization=Normalization())
    assert not outputs(model)[:, 0].any()
    drop_and_grow_from_averages(model, [update(0, 1, grown)], job(0.5), MEAN)
    assert outputs(model)[:, 0].all()
    assert outputs(model)[:, 1].all()


def test_without_that_step_a_dead_filter_would_stay_dead() -> None:
    model = layer_model([1, 3, 4, 7], [0.0, 0.0, -2.0, 2.0], normalization=Normalization())
    assert not outputs(model)[:, 0].any()


@given(filters=st.integers(1, 8), share=st.floats(0.1, 0.9), rate=st.floats(0, 1), seed=st.integers(0, 9999))
@settings(deadline=None)
def test_no_filter_dies_and_as_many_weights_stay_active(
    filters: int, share: float, rate: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    size = 4 * filters
    active = np.sort(random.choice(size, max(1, round(share * size)), replace=False))
    pruned = np.setdiff1d(np.arange(size), active)
    model = layer_model(
        active.tolist(),
        random.normal(size=active.size).tolist(),
        filters=filters,
        normalization=Normalization(),
    )
    lengths = np.bincount(active // 4, minlength=filters)
    gradients = random.normal(size=pruned.size).tolist()
    drop_and_grow_from_averages(model, [update(0, 1, scores(pruned.tolist(), gradients))], job(rate), MEAN)
    assert model.positions("0").size == active.size
    assert (np.bincount(model.positions("0") // 4, minlength=filters)[lengths >= 2] >= 2).all()


def test_a_device_with_a_vote_counts_alike_however_large_its_gradients_are() -> None:
    loud = update(0, 100, scores([1, 3], [1000.0, 0.0]))
    quiet = [update(device, 1, scores([4, 6], [0.0, 0.1])) for device in (1, 2)]
    model = small_model()
    drop_and_grow_from_averages(model, [loud, *quiet], job(0.25), VOTES)
    assert 6 in dense(model)
    model = small_model()
    drop_and_grow_from_averages(model, [loud, *quiet], job(0.25), MEAN)
    assert 1 in dense(model)


WRONG = [
    ({}, "no growth scores"),
    ({"0": GrowthScores(integers(1, 3), floats(1.0))}, "no growth scores"),
    ({"0": GrowthScores(integers(1, 3)[None], floats(1.0, 1.0)[None])}, "no growth scores"),
    ({"0": scores([1, 3], [1.0, float("nan")])}, "not finite"),
    ({"0": GrowthScores(integers(1, 3), np.ones(2))}, "not finite"),
    ({"0": scores([3, 1], [1.0, 1.0])}, "not ascending or out of range"),
    ({"0": scores([1, 1], [1.0, 1.0])}, "not ascending or out of range"),
    ({"0": scores([1, 8], [1.0, 1.0])}, "not ascending or out of range"),
    ({"0": scores([-1, 3], [1.0, 1.0])}, "not ascending or out of range"),
    ({"0": scores([1, 2], [1.0, 1.0])}, "for a weight that is active"),
]


@pytest.mark.parametrize(("growth", "expected"), WRONG)
def test_wrong_scores_are_refused_and_name_the_device(growth: dict[str, GrowthScores], expected: str) -> None:
    wrong = Update(7, 1, 0.0, {}, Extras(growth=growth))
    with pytest.raises(RejectedError, match=f"device 7 sent .*{expected}"):
        drop_and_grow_from_averages(small_model(), [wrong], job(0.5), MEAN)
    with pytest.raises(RejectedError, match="device 7 sent"):
        check_growth(small_model(), wrong, 0.5)


def test_no_more_scores_are_taken_than_were_asked_for() -> None:
    model = small_model()
    check_growth(model, update(7, 1, scores([1, 3], [1.0, 1.0])), 0.5)
    check_growth(model, update(7, 1, scores([], [])), 0.5)  # fewer positions may have a gradient
    with pytest.raises(RejectedError, match="device 7 sent 3 growth scores of 0, not 2"):
        check_growth(model, update(7, 1, scores([1, 3, 4], [1.0, 1.0, 1.0])), 0.5)


def test_scores_that_nobody_asked_for_are_refused() -> None:
    with pytest.raises(RejectedError, match="device 7 sent an unexpected '0'"):
        check_growth(small_model(), update(7, 1, scores([1], [1.0])), 0.0)


def test_with_too_few_candidates_fewer_are_exchanged() -> None:
    model = small_model()
    adjustment = drop_and_grow_from_averages(model, [update(0, 1, scores([4], [1.0]))], job(0.5), MEAN)
    assert adjustment.exchanged == 1
    assert model.positions("0").tolist() == [0, 4, 5, 7]


def test_nothing_to_grow_is_no_adjustment() -> None:
    model = small_model()
    adjustment = drop_and_grow_from_averages(model, [update(0, 1, scores([], []))], job(0.5), MEAN)
    assert (adjustment.exchanged, adjustment.dropped_magnitude) == (0, None)
    assert dense(model) == dense(small_model())


def test_dense_layers_exchange_nothing() -> None:
    model = two_layers(([0, 1, 2, 3], [1.0] * 4), ([0, 1, 2, 5, 6, 7], [1.0] * 6), filters=(1, 2))
    assert adjustment_counts(model, 0.4) == {"1": 2}
    assert adjustment_counts(model, 0.9) == {"1": 2}  # no more than there is room for
    assert adjustment_counts(model, 0.0) == {}


def test_frozen_layers_exchange_nothing() -> None:
    frozen = layer_model([0, 2, 5, 7], [0.5, -0.1, 0.2, -3.0], frozen=("0.values",))
    assert adjustment_counts(frozen, 0.5) == {}
    assert adjustment_counts(small_model(), 0.5) == {"0": 2}
