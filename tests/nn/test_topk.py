"""The tensors' top-k is NumPy's, whatever the sample that guesses the threshold saw."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmef.nn.topk import SAMPLE_SIZE, largest_magnitudes
from fedmef.sparsity import topk


def assert_same_as_numpys(values: Tensor, count: int) -> None:
    positions = largest_magnitudes(values, count)
    assert positions.dtype == torch.int64
    np.testing.assert_array_equal(positions.numpy(), topk.largest_magnitudes(values.numpy(), count))


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


def test_ties_go_to_the_lower_position_and_zeros_are_never_chosen() -> None:
    values = torch.tensor([1.0, -1.0, 0.0, 2.0, -1.0, 1.0, -0.0, 1.0])
    assert largest_magnitudes(values, 4).tolist() == [0, 1, 3, 4]
    assert largest_magnitudes(values, 8).tolist() == [0, 1, 3, 4, 5, 7]
    assert largest_magnitudes(torch.zeros(8), 4).tolist() == []


numbers = st.one_of(
    st.floats(-100, 100, width=32), st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1e-30]), st.integers(-3, 3)
)


@given(numbers=st.lists(numbers, max_size=60), count=st.integers(-1, 70))
@settings(deadline=None, max_examples=300)
def test_any_short_vector_gives_what_numpy_gives(numbers: list[float], count: int) -> None:
    values = torch.tensor(numbers, dtype=torch.float32)
    assert_same_as_numpys(values, count)
    assert largest_magnitudes(values, count).tolist() == exact_top(values, max(count, 0))


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
def test_long_vectors_give_what_numpy_gives_however_they_mislead_the_sample(name: str, count: int) -> None:
    values = long_vectors()[name]
    assert_same_as_numpys(values, count)
    assert largest_magnitudes(values, count).tolist() == exact_top(values, count)


@given(
    size=st.integers(SAMPLE_SIZE - 2, 4 * SAMPLE_SIZE),
    period=st.integers(1, 9),
    share=st.floats(0.0001, 1.0),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=30)
def test_periodic_vectors_give_what_numpy_gives(size: int, period: int, share: float, seed: int) -> None:
    pattern = torch.randn(period, generator=torch.Generator().manual_seed(seed))
    values = pattern.repeat(size // period + 1)[:size]
    assert_same_as_numpys(values, max(1, int(size * share)))


@given(
    size=st.integers(1, 4 * SAMPLE_SIZE),
    zeros=st.floats(0, 1),
    levels=st.sampled_from([1, 3, 100, 10**6]),
    share=st.floats(0, 1),
    seed=st.integers(0, 999),
)
@settings(deadline=None, max_examples=100)
def test_any_size_share_of_zeros_and_ties_gives_what_numpy_gives(
    size: int, zeros: float, levels: int, share: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(-levels, levels + 1, size).astype(np.float32) / levels
    values[random.random(size) < zeros] = 0
    assert_same_as_numpys(torch.from_numpy(values), round(share * size))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_give_the_exact_top(dtype: torch.dtype) -> None:
    values = torch.randn(LONG, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert largest_magnitudes(values, LONG // 10).tolist() == exact_top(values, LONG // 10)
    if dtype != torch.bfloat16:  # which NumPy has not
        assert_same_as_numpys(values, LONG // 10)
