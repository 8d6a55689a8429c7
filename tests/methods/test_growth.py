"""Drop-and-grow on the server, from the devices' largest gradients."""

import numpy as np
import pytest

from fedmef.errors import RejectedError
from fedmef.methods.base import Rules
from fedmef.methods.growth import (
    adjustment_counts,
    average_scores,
    check_growth,
    drop_and_grow_from_averages,
)
from fedmef.sparsity.growth import GrowthScores
from fedmef.sparsity.model import Model
from fedmef.sparsity.operations import Normalization
from fedmef.wire.update import Extras, Update
from tests.methods.small_models import MEAN, floats, integers, layer_model, two_layers

AT_THE_MEAN = Rules(MEAN.combine, grow_init="mean")
VOTES = Rules(MEAN.combine, one_vote_each=True)


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
    adjustment = drop_and_grow_from_averages(model, updates, 0.5, MEAN)
    # ξ = floor(0.5 · 4) = 2: averages are 0.25 at 1, −0.5 at 3, 6 at 6; −0.1 at 2 and 0.2 at 5 are smallest
    assert dense(model) == {0: 0.5, 3: 0.0, 6: 0.0, 7: -3.0}
    assert adjustment.exchanged == 2
    assert adjustment.dropped_magnitude == pytest.approx(0.15)


def test_arrays_are_replaced_and_never_changed() -> None:
    """A message that is still on its way may hold them."""
    model = small_model()
    held = dict(model.state)
    before = {name: array.copy() for name, array in held.items()}
    drop_and_grow_from_averages(model, [update(0, 1, scores([1, 3], [1.0, 4.0]))], 0.5, MEAN)
    assert all(np.array_equal(held[name], before[name]) for name in held)
    assert not np.array_equal(model.state["0.mask"], held["0.mask"])


def test_grown_weights_can_start_at_their_filters_mean() -> None:
    model = small_model()
    drop_and_grow_from_averages(model, [update(0, 1, scores([1, 6], [1.0, 4.0]))], 0.25, AT_THE_MEAN)
    assert model.positions("0").tolist() == [0, 5, 6, 7]
    assert model.values("0").tolist() == pytest.approx([0.5, 0.2, (0.2 - 3.0) / 2, -3.0])


def test_a_filter_without_weights_has_a_mean_of_zero() -> None:
    model = layer_model([4, 5, 6, 7], [0.1, 2.0, 3.0, 4.0])  # nothing in the first filter
    drop_and_grow_from_averages(model, [update(0, 1, scores([1], [1.0]))], 0.25, AT_THE_MEAN)
    assert dense(model) == {1: 0.0, 5: 2.0, 6: 3.0, 7: 4.0}


def test_growing_at_the_mean_of_what_is_left_changes_no_function() -> None:
    """NSConv sees a weight's distance from its filter's mean: one that is the mean adds nothing to it."""
    random = np.random.default_rng(0)
    active = np.sort(random.choice(12 * 4, 24, replace=False)).tolist()
    model = layer_model(active, random.normal(size=24).tolist(), filters=12, normalization=Normalization())
    model.center_filters("0")
    values, positions = model.values("0"), model.positions("0")
    pruned = [position for position in range(48) if position not in active][:7]
    kept = np.sort(np.argsort(np.abs(values))[7:])

    drop_and_grow_from_averages(model, [update(0, 1, scores(pruned, [1.0] * 7))], 7.5 / 24, AT_THE_MEAN)
    for number in range(12):
        left = values[kept][positions[kept] // 4 == number]
        now = model.values("0")[model.positions("0") // 4 == number]
        # The same distances from the mean, and zeros for what has grown.
        distances = np.sort(
            np.concatenate([left - left.mean() if left.size else left, np.zeros(len(now) - len(left))])
        )
        if len(now) >= 2:
            np.testing.assert_allclose(np.sort(now - now.mean()), distances, atol=1e-6)


def test_under_nsconv_what_is_closest_to_its_filters_mean_goes() -> None:
    # The mean is 1.25: NSConv sees -1.25, -0.25, -0.25, 1.75, so both 1 go although 0 is the smallest.
    model = layer_model([4, 5, 6, 7], [0.0, 1.0, 1.0, 3.0], filters=2, normalization=Normalization())
    drop_and_grow_from_averages(model, [update(0, 1, scores([1, 3], [1.0, 1.0]))], 0.5, MEAN)
    assert model.positions("0").tolist() == [1, 3, 4, 7]
    # -1.25 and 1.75 are left, and centred again; what has grown is 0.
    assert model.values("0").tolist() == [0.0, 0.0, -1.5, 1.5]


def test_grown_weights_are_centred_with_their_filter() -> None:
    model = layer_model([0, 1, 4, 5], [-3.0, 3.0, -1.0, 1.0], normalization=Normalization())
    drop_and_grow_from_averages(model, [update(0, 1, scores([2], [1.0]))], 0.25, MEAN)
    # −1 goes, which leaves 1 alone in its filter; 0 comes between −3 and 3
    assert dense(model) == {0: -3.0, 1: 3.0, 2: 0.0, 5: 1.0}


def test_a_device_with_a_vote_counts_alike_however_large_its_gradients_are() -> None:
    loud = update(0, 100, scores([1, 3], [1000.0, 0.0]))
    quiet = [update(device, 1, scores([4, 6], [0.0, 0.1])) for device in (1, 2)]
    model = small_model()
    drop_and_grow_from_averages(model, [loud, *quiet], 0.25, VOTES)
    assert 6 in dense(model)
    model = small_model()
    drop_and_grow_from_averages(model, [loud, *quiet], 0.25, MEAN)
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
        drop_and_grow_from_averages(small_model(), [wrong], 0.5, MEAN)
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
    adjustment = drop_and_grow_from_averages(model, [update(0, 1, scores([4], [1.0]))], 0.5, MEAN)
    assert adjustment.exchanged == 1
    assert model.positions("0").tolist() == [0, 4, 5, 7]


def test_nothing_to_grow_is_no_adjustment() -> None:
    model = small_model()
    adjustment = drop_and_grow_from_averages(model, [update(0, 1, scores([], []))], 0.5, MEAN)
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
