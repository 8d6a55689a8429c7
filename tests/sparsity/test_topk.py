"""The bounded top-k is exact, whatever the sample saw."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmef.sparsity import largest_magnitudes, smallest_magnitudes
from fedmef.sparsity.topk import SAMPLE_SIZE


def exact_top(values: Tensor, count: int) -> list[int]:
    """By a stable sort: the definition."""
    order = torch.sort(values.abs(), descending=True, stable=True).indices[:count]
    positions: list[int] = order[values[order] != 0].sort().values.tolist()
    return positions


def test_the_largest_of_eight() -> None:
    values = torch.tensor([0.5, -4.0, 0.0, 3.0, -0.1, 0.0, 2.0, -1.0])
    assert largest_magnitudes(values, 1).tolist() == [1]
    assert largest_magnitudes(values, 3).tolist() == [1, 3, 6]
    assert largest_magnitudes(values, 6).tolist() == [0, 1, 3, 4, 6, 7]


def test_zeros_are_never_chosen() -> None:
    assert largest_magnitudes(torch.tensor([0.0, 1.0, -0.0, 0.0]), 3).tolist() == [1]
    assert largest_magnitudes(torch.zeros(8), 4).tolist() == []


def test_ties_go_to_the_lower_position() -> None:
    values = torch.tensor([1.0, -1.0, 1.0, 2.0, -1.0, 1.0, 1.0, 1.0])
    assert largest_magnitudes(values, 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [0, -1])
def test_nothing_is_chosen_when_nothing_is_asked_for(count: int) -> None:
    assert largest_magnitudes(torch.ones(8), count).tolist() == []


def test_all_are_chosen_when_more_are_asked_for_than_there_are() -> None:
    assert largest_magnitudes(torch.tensor([3.0, -1.0]), 5).tolist() == [0, 1]


def test_the_smallest_of_eight_come_smallest_first() -> None:
    values = torch.tensor([0.5, -4.0, 0.0, 3.0, -0.1, 0.1, 2.0, -1.0])
    assert smallest_magnitudes(values, 4).tolist() == [2, 4, 5, 0]
    assert smallest_magnitudes(values, 0).tolist() == []


numbers = st.one_of(
    st.floats(-100, 100, width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1e-30]), st.integers(-3, 3)
)


@given(numbers=st.lists(numbers, min_size=1, max_size=60), data=st.data())
@settings(deadline=None)
def test_any_short_vector_gives_the_exact_top(numbers: list[float], data: st.DataObject) -> None:
    values = torch.tensor(numbers, dtype=torch.float32)
    count = data.draw(st.integers(0, len(numbers)))
    assert largest_magnitudes(values, count).tolist() == exact_top(values, count)


LONG = 3 * SAMPLE_SIZE + 1234  # sampled with a stride of 3


def long_vectors() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(LONG, generator=random)
    ramp = torch.arange(LONG, dtype=torch.float32)
    on_the_sample = torch.zeros(LONG)
    on_the_sample[::3] = 1.0
    needles = torch.full((LONG,), 0.5)
    needles[1::1000] = 9.0  # between the sampled positions
    needles[2::7777] = -8.0
    return {
        "normal": noise,
        "rectified": noise.clamp(min=0),
        "ascending": ramp,
        "descending": ramp.flip(0),
        "all equal": torch.ones(LONG),
        "all zero": torch.zeros(LONG),
        "one not zero": torch.zeros(LONG).index_fill_(0, torch.tensor([4]), -1.0),
        "period of the stride": (ramp % 3) - 1,
        "large only where sampled": on_the_sample,
        "small only where sampled": 2 - on_the_sample,
        "needles the sample misses": needles,
        "few levels": (noise * 2).round(),
    }


@pytest.mark.parametrize("name", long_vectors())
@pytest.mark.parametrize("count", [1, LONG // 10, LONG // 2, LONG - 1, LONG])
def test_long_vectors_give_the_exact_top_however_they_mislead_the_sample(name: str, count: int) -> None:
    values = long_vectors()[name]
    assert largest_magnitudes(values, count).tolist() == exact_top(values, count)


@given(
    size=st.integers(SAMPLE_SIZE - 2, 4 * SAMPLE_SIZE),
    period=st.integers(1, 9),
    share=st.floats(0.0001, 1.0),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=15)
def test_periodic_vectors_give_the_exact_top(size: int, period: int, share: float, seed: int) -> None:
    pattern = torch.randn(period, generator=torch.Generator().manual_seed(seed))
    values = pattern.repeat(size // period + 1)[:size]
    count = max(1, int(size * share))
    assert largest_magnitudes(values, count).tolist() == exact_top(values, count)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_give_the_exact_top(dtype: torch.dtype) -> None:
    values = torch.randn(LONG, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert largest_magnitudes(values, LONG // 10).tolist() == exact_top(values, LONG // 10)
