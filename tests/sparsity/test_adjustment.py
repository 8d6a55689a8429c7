"""When masks are adjusted, by how much, and how."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.errors import UserError
from fedmef.sparsity import AdjustmentSchedule, adjustment_count, drop_and_grow, smallest_magnitudes
from fedmef.sparsity.adjustment import weakest
from fedmef.sparsity.arrays import Array
from fedmef.sparsity.network import INPUT
from fedmef.sparsity.operations import Layer, Linear, Normalization

SCHEDULE = AdjustmentSchedule(every=10, until=300)


def test_the_rate_falls_like_a_cosine() -> None:
    assert SCHEDULE.rate(100) == pytest.approx(0.2 * (1 + 0.5))
    assert SCHEDULE.rate(150) == pytest.approx(0.2)
    assert SCHEDULE.rate(200) == pytest.approx(0.2 * (1 - 0.5))
    assert SCHEDULE.rate(300) == pytest.approx(0.0)


def test_the_first_round_does_not_adjust_and_the_one_after_the_period_does() -> None:
    assert SCHEDULE.rate(0) == 0
    assert SCHEDULE.rate(10) == pytest.approx(0.4, abs=0.002)


def test_rounds_between_and_after_do_not_adjust() -> None:
    assert [SCHEDULE.rate(number) for number in (1, 9, 11, 299, 301, 310, 1000)] == [0] * 7


@given(every=st.integers(1, 20), until=st.integers(0, 300), numbers=st.lists(st.integers(0, 400), min_size=2))
@settings(deadline=None)
def test_rates_never_rise_over_the_adjustment_rounds(every: int, until: int, numbers: list[int]) -> None:
    schedule = AdjustmentSchedule(every, until)
    rates = [schedule.rate(every * number) for number in sorted(set(numbers) - {0})]
    assert all(0 <= rate < 0.4 for rate in rates)
    assert rates == sorted(rates, reverse=True)


def test_the_count_is_rounded_down() -> None:
    assert adjustment_count(0.39, active=10, size=100) == 3
    assert adjustment_count(0.0, active=10, size=100) == 0


def test_no_more_are_exchanged_than_there_are_pruned_positions() -> None:
    assert adjustment_count(0.4, active=98, size=100) == 2
    assert adjustment_count(0.4, active=100, size=100) == 0


@given(rate=st.floats(0, 0.4), size=st.integers(0, 1000), share=st.floats(0, 1))
@settings(deadline=None)
def test_a_count_is_at_least_zero_and_fits_both_sides(rate: float, size: int, share: float) -> None:
    active = int(size * share)
    assert 0 <= adjustment_count(rate, active, size) <= min(active, size - active)


# Eight weights, half of them active:    0     1     2     3     4     5     6     7
# active values                                5.0        -0.1         2.0        -3.0
# averaged gradients of pruned ones      0.5         -4.0         1.0         0.0
POSITIONS = np.array([1, 3, 5, 7])
VALUES = np.array([5.0, -0.1, 2.0, -3.0])
CANDIDATES = np.array([0, 2, 4, 6])
SCORES = np.array([0.5, -4.0, 1.0, 0.0])


def exchange(count: int, initial: Array | None = None) -> tuple[list[int], list[float]]:
    initial = np.zeros(4) if initial is None else initial
    positions, values = drop_and_grow(
        POSITIONS, VALUES, smallest_magnitudes(VALUES, count), CANDIDATES, SCORES, initial
    )
    return positions.tolist(), [round(value, 4) for value in values.tolist()]


def test_the_smallest_weight_goes_and_the_largest_gradient_comes_by_hand() -> None:
    assert exchange(1) == ([1, 2, 5, 7], [5.0, 0.0, 2.0, -3.0])


def test_two_go_and_two_come_by_hand() -> None:
    assert exchange(2) == ([1, 2, 4, 7], [5.0, 0.0, 0.0, -3.0])


def test_grown_weights_start_where_they_are_told_to() -> None:
    assert exchange(2, initial=np.array([10.0, 20.0, 30.0, 40.0]))[1] == [5.0, 20.0, 30.0, -3.0]


def test_nothing_is_exchanged_at_a_count_of_zero() -> None:
    assert exchange(0) == (POSITIONS.tolist(), [5.0, -0.1, 2.0, -3.0])


def test_fewer_candidates_than_the_count_drop_as_few() -> None:
    candidates, scores = np.array([6]), np.array([1.0])
    positions, values = drop_and_grow(POSITIONS, VALUES, np.array([1, 2, 3]), candidates, scores, np.zeros(1))
    assert positions.tolist() == [1, 5, 6, 7]
    assert values.tolist() == [5.0, 2.0, 0.0, -3.0]


def test_equal_weights_and_equal_gradients_go_by_position() -> None:
    candidates = np.array([0, 2, 4, 6])
    positions, _ = drop_and_grow(
        POSITIONS, np.ones(4), np.array([0, 1]), candidates, -np.ones(4), np.zeros(4)
    )
    assert positions.tolist() == [0, 2, 5, 7]


def test_an_active_candidate_is_refused() -> None:
    with pytest.raises(UserError, match="already active"):
        drop_and_grow(POSITIONS, VALUES, np.array([1]), np.array([0, 3]), np.ones(2), np.zeros(2))


@given(data=st.data(), size=st.integers(1, 60), seed=st.integers(0, 999))
@settings(deadline=None)
def test_growing_never_changes_density(data: st.DataObject, size: int, seed: int) -> None:
    active = data.draw(st.integers(0, size))
    offered = data.draw(st.integers(0, size - active))
    count = data.draw(st.integers(0, size + 5))
    random = np.random.default_rng(seed)
    order = random.permutation(size)
    positions, candidates = np.sort(order[:active]), np.sort(order[active : active + offered])
    values = random.integers(-3, 4, active).astype(np.float32)
    scores = random.integers(-3, 4, offered).astype(np.float32)
    initial = np.full(offered, 100, dtype=np.float32)

    dropped = smallest_magnitudes(values, count)
    new_positions, new_values = drop_and_grow(positions, values, dropped, candidates, scores, initial)

    assert new_positions.size == new_values.size == active
    assert new_values.dtype == np.float32
    assert (np.diff(new_positions) > 0).all()
    exchanged = min(count, active, offered)
    is_grown = np.isin(new_positions, candidates)
    assert int(is_grown.sum()) == exchanged
    assert (new_values[is_grown] == 100).all()
    before = dict(zip(positions.tolist(), values.tolist(), strict=True))
    kept = dict(zip(new_positions[~is_grown].tolist(), new_values[~is_grown].tolist(), strict=True))
    assert kept.items() <= before.items()
    gone = [abs(value) for position, value in before.items() if position not in kept]
    assert max(gone, default=0) <= min((abs(value) for value in kept.values()), default=100)
    is_chosen = np.isin(candidates, new_positions)
    if 0 < exchanged < offered:
        assert np.abs(scores[is_chosen]).min() >= np.abs(scores[~is_chosen]).max()


def layer_of(filters: int, size: int, *, normalized: bool) -> Layer:
    normalization = Normalization() if normalized else None
    return Linear(
        name="0", inputs=(INPUT,), module="0", shape=(filters, size), sparse=True, normalization=normalization
    )


# Filters of four weights:   0.1  0.2  0.3  0.4 |  5  -6      |  0.5
FILTERS_AT = np.array([0, 1, 2, 3, 4, 6, 9])
OF_FILTERS = np.array([0.1, 0.2, 0.3, 0.4, 5.0, -6.0, 0.5])


def test_a_normalised_filter_keeps_its_two_largest_weights_by_hand() -> None:
    def dropped(count: int, *, normalized: bool) -> list[int]:
        return list(weakest(FILTERS_AT, OF_FILTERS, layer_of(3, 4, normalized=normalized), count))

    assert dropped(4, normalized=False) == [0, 1, 2, 3]
    assert dropped(4, normalized=True) == [0, 1]
    assert dropped(1, normalized=True) == [0]
    assert dropped(0, normalized=True) == []


@given(
    filters=st.integers(1, 6),
    size=st.integers(1, 6),
    share=st.floats(0, 1),
    seed=st.integers(0, 999),
    data=st.data(),
)
@settings(deadline=None)
def test_dropping_kills_no_filter(
    filters: int, size: int, share: float, seed: int, data: st.DataObject
) -> None:
    random = np.random.default_rng(seed)
    active = int(share * filters * size)
    positions = np.sort(random.permutation(filters * size)[:active])
    values = random.integers(-3, 4, active).astype(np.float32)
    count = data.draw(st.integers(0, active))

    gone = weakest(positions, values, layer_of(filters, size, normalized=True), count)

    before = np.bincount(positions // size, minlength=filters)
    after = np.bincount(np.delete(positions, gone) // size, minlength=filters)
    assert (after >= np.minimum(before, 2)).all()
    assert gone.size == min(count, int(np.maximum(before - 2, 0).sum()))
    assert np.unique(gone).size == gone.size
    assert (np.diff(np.abs(values[gone])) >= 0).all()
