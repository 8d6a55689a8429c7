"""The top-k is exact, and ties never depend on the machine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.sparsity import largest_magnitudes, smallest_magnitudes
from fedmef.sparsity.arrays import Array


def exact_top(values: Array, count: int) -> list[int]:
    """By a stable sort: the definition."""
    order = np.argsort(-np.abs(values), kind="stable")[:count]
    positions: list[int] = np.sort(order[values[order] != 0]).tolist()
    return positions


def test_the_largest_of_eight() -> None:
    values = np.array([0.5, -4.0, 0.0, 3.0, -0.1, 0.0, 2.0, -1.0])
    assert largest_magnitudes(values, 1).tolist() == [1]
    assert largest_magnitudes(values, 3).tolist() == [1, 3, 6]
    assert largest_magnitudes(values, 6).tolist() == [0, 1, 3, 4, 6, 7]


def test_zeros_are_never_chosen() -> None:
    assert largest_magnitudes(np.array([0.0, 1.0, -0.0, 0.0]), 3).tolist() == [1]
    assert largest_magnitudes(np.zeros(8), 4).tolist() == []


def test_ties_go_to_the_lower_position() -> None:
    values = np.array([1.0, -1.0, 1.0, 2.0, -1.0, 1.0, 1.0, 1.0])
    assert largest_magnitudes(values, 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [0, -1])
def test_nothing_is_chosen_when_nothing_is_asked_for(count: int) -> None:
    assert largest_magnitudes(np.ones(8), count).tolist() == []


def test_all_are_chosen_when_more_are_asked_for_than_there_are() -> None:
    assert largest_magnitudes(np.array([3.0, -1.0]), 5).tolist() == [0, 1]
    assert largest_magnitudes(np.array([]), 5).tolist() == []


def test_positions_are_integers_even_when_there_are_none() -> None:
    for count in (0, 1, 2):
        assert largest_magnitudes(np.array([3.0, -1.0]), count).dtype == np.int64
        assert smallest_magnitudes(np.array([3.0, -1.0]), count).dtype == np.int64


def test_the_smallest_of_eight_come_smallest_first() -> None:
    values = np.array([0.5, -4.0, 0.0, 3.0, -0.1, 0.1, 2.0, -1.0])
    assert smallest_magnitudes(values, 4).tolist() == [2, 4, 5, 0]
    assert smallest_magnitudes(values, 0).tolist() == []
    assert smallest_magnitudes(values, 9).tolist() == [2, 4, 5, 0, 7, 6, 3, 1]


numbers = st.one_of(
    st.floats(-100, 100, width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1e-30]), st.integers(-3, 3)
)


@given(numbers=st.lists(numbers, min_size=1, max_size=60), data=st.data())
@settings(deadline=None)
def test_any_short_vector_gives_the_exact_top(numbers: list[float], data: st.DataObject) -> None:
    values = np.array(numbers, dtype=np.float32)
    count = data.draw(st.integers(0, len(numbers)))
    assert largest_magnitudes(values, count).tolist() == exact_top(values, count)


@given(numbers=st.lists(numbers, min_size=1, max_size=60), data=st.data())
@settings(deadline=None)
def test_the_smallest_are_no_larger_than_the_others(numbers: list[float], data: st.DataObject) -> None:
    values = np.array(numbers, dtype=np.float32)
    count = data.draw(st.integers(0, len(numbers)))
    chosen = smallest_magnitudes(values, count)
    others = np.delete(np.abs(values), chosen)
    assert len(set(chosen.tolist())) == count
    assert np.abs(values[chosen]).max(initial=0) <= others.min(initial=np.inf)


LONG = 20_011  # long enough that partitioning takes other ways than in short vectors


def long_vectors() -> dict[str, Array]:
    noise = np.random.default_rng(0).standard_normal(LONG).astype(np.float32)
    ramp = np.arange(LONG, dtype=np.float32)
    one = np.zeros(LONG, dtype=np.float32)
    one[4] = -1
    needles = np.full(LONG, 0.5, dtype=np.float32)
    needles[1::1000] = 9.0
    needles[2::7777] = -8.0
    return {
        "normal": noise,
        "rectified": noise.clip(min=0),
        "ascending": ramp,
        "descending": ramp[::-1],
        "all equal": np.ones(LONG, dtype=np.float32),
        "all zero": np.zeros(LONG, dtype=np.float32),
        "one not zero": one,
        "three levels in turn": (ramp % 3) - 1,
        "needles": needles,
        "few levels": (noise * 2).round(),
    }


@pytest.mark.parametrize("name", long_vectors())
@pytest.mark.parametrize("count", [1, LONG // 10, LONG // 2, LONG - 1, LONG])
def test_long_vectors_give_the_exact_top(name: str, count: int) -> None:
    values = long_vectors()[name]
    assert largest_magnitudes(values, count).tolist() == exact_top(values, count)


@given(
    size=st.integers(10_000, 20_000),
    period=st.integers(1, 9),
    share=st.floats(0.0001, 1.0),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=15)
def test_periodic_vectors_give_the_exact_top(size: int, period: int, share: float, seed: int) -> None:
    pattern = np.random.default_rng(seed).standard_normal(period)
    values = np.resize(pattern, size)
    count = max(1, int(size * share))
    assert largest_magnitudes(values, count).tolist() == exact_top(values, count)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_precisions_give_the_exact_top(dtype: type) -> None:
    values: Array = np.random.default_rng(1).standard_normal(LONG).astype(dtype)
    assert largest_magnitudes(values, LONG // 10).tolist() == exact_top(values, LONG // 10)


def test_the_input_stays_as_it_is() -> None:
    values = np.random.default_rng(1).standard_normal(100)
    before = values.copy()
    largest_magnitudes(values, 10)
    smallest_magnitudes(values, 10)
    assert np.array_equal(values, before)
