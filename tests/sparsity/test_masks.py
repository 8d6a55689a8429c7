"""Bit-packed masks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmef.errors import UserError
from fedmef.sparsity import (
    active_count,
    active_positions,
    count_bits,
    magnitude_mask,
    mask_from_positions,
    pack_bits,
    random_mask,
    unpack_bits,
)

bit_lists = st.lists(st.booleans(), max_size=70)


def bits(*ones_and_zeros: int) -> Tensor:
    return torch.tensor(ones_and_zeros, dtype=torch.bool)


def test_the_first_position_is_the_lowest_bit() -> None:
    assert pack_bits(bits(1, 0, 0, 0, 0, 0, 0, 0)).tolist() == [1]
    assert pack_bits(bits(0, 1, 0, 0, 0, 0, 0, 1)).tolist() == [2 + 128]
    assert pack_bits(bits(1, 1, 1, 1, 1, 1, 1, 1)).tolist() == [255]


def test_the_last_byte_is_padded_with_zeros() -> None:
    assert pack_bits(bits(1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1)).tolist() == [255, 5]


def test_a_matrix_is_packed_row_by_row() -> None:
    matrix = bits(1, 0, 0, 0, 0, 1, 1, 0).view(2, 4)
    assert pack_bits(matrix).tolist() == [1 + 32 + 64]
    assert pack_bits(matrix.t()).tolist() == [1 + 8 + 32]  # columns (1, 0), (0, 1), (0, 1), (0, 0)


@given(ones_and_zeros=bit_lists)
@settings(deadline=None)
def test_packing_equals_numpy(ones_and_zeros: list[bool]) -> None:
    packed = pack_bits(torch.tensor(ones_and_zeros, dtype=torch.bool))
    assert packed.dtype == torch.uint8
    assert packed.tolist() == np.packbits(np.array(ones_and_zeros, dtype=bool), bitorder="little").tolist()


@given(ones_and_zeros=bit_lists)
@settings(deadline=None)
def test_unpacking_undoes_packing(ones_and_zeros: list[bool]) -> None:
    vector = torch.tensor(ones_and_zeros, dtype=torch.bool)
    assert unpack_bits(pack_bits(vector), vector.numel()).tolist() == ones_and_zeros


@given(
    ones_and_zeros=st.lists(st.booleans(), min_size=20, max_size=70),
    start=st.integers(0, 9),
    step=st.integers(1, 3),
)
@settings(deadline=None)
def test_views_with_an_offset_or_gaps_are_packed_like_copies(
    ones_and_zeros: list[bool], start: int, step: int
) -> None:
    view = torch.tensor(ones_and_zeros, dtype=torch.bool)[start::step]
    assert pack_bits(view).tolist() == pack_bits(view.clone()).tolist()


@pytest.mark.parametrize("start", range(1, 8))
def test_whole_bytes_that_start_in_the_middle_of_a_word_are_packed(start: int) -> None:
    view = torch.arange(24)[start : start + 16].remainder(3) == 0
    offset = torch.zeros(24, dtype=torch.bool)[start : start + 16].copy_(view)
    assert offset.storage_offset() == start
    assert pack_bits(offset).tolist() == np.packbits(view.numpy(), bitorder="little").tolist()


def test_an_expanded_bit_is_packed_as_often_as_it_is_repeated() -> None:
    assert pack_bits(torch.tensor(True).expand(2, 8)).tolist() == [255, 255]


def test_nothing_packs_to_nothing() -> None:
    assert pack_bits(bits()).numel() == 0
    assert unpack_bits(pack_bits(bits()), 0).numel() == 0


@given(ones_and_zeros=bit_lists)
@settings(deadline=None)
def test_positions_and_counts_are_those_of_the_ones(ones_and_zeros: list[bool]) -> None:
    vector = torch.tensor(ones_and_zeros, dtype=torch.bool)
    packed = pack_bits(vector)
    positions = active_positions(packed, vector.numel())
    assert positions.tolist() == [position for position, one in enumerate(ones_and_zeros) if one]
    assert count_bits(packed) == sum(ones_and_zeros)
    assert torch.equal(mask_from_positions(positions, vector.numel()), packed)


def test_a_tenth_of_ten_is_one_in_spite_of_floating_point() -> None:
    assert 10 * (1 - 0.9) < 1
    assert active_count(10, 0.9) == 1
    assert active_count(30, 0.9) == 3
    assert active_count(8, 0.5) == 4


def test_a_share_between_two_counts_is_rounded_down() -> None:
    assert active_count(19, 0.9) == 1
    assert active_count(9, 0.9) == 0
    assert active_count(7, 0.0) == 7


@given(size=st.integers(0, 10_000_000), sparsity=st.floats(0, 1, exclude_max=True))
@settings(deadline=None)
def test_a_count_is_never_above_its_share_and_never_one_below(size: int, sparsity: float) -> None:
    share = size * (1 - sparsity)
    assert share - 1 < active_count(size, sparsity) <= share + 1e-6


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 1.5, float("nan")])
def test_an_impossible_sparsity_is_named(sparsity: float) -> None:
    with pytest.raises(UserError, match=f"sparsity = {sparsity}"):
        active_count(10, sparsity)


@given(size=st.integers(1, 100), share=st.floats(0, 1), seed=st.integers(0, 99))
@settings(deadline=None)
def test_a_random_mask_has_exactly_its_count(size: int, share: float, seed: int) -> None:
    count = round(size * share)
    mask = random_mask(size, count, torch.Generator().manual_seed(seed))
    assert mask.shape == ((size + 7) // 8,)
    assert count_bits(mask) == count
    assert active_positions(mask, size).numel() == count


def test_only_the_generator_decides_a_random_mask() -> None:
    first, same, other = (random_mask(800, 80, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_every_position_is_equally_likely_in_a_random_mask() -> None:
    generator = torch.Generator().manual_seed(0)
    hits = sum(unpack_bits(random_mask(11, 3, generator), 11).double() for _ in range(2000))
    # 2000 draws of 3 in 11: 545 each, with a standard deviation of 20
    assert isinstance(hits, Tensor)
    assert (hits - 2000 * 3 / 11).abs().max() < 5 * 20


def test_a_magnitude_mask_keeps_the_largest() -> None:
    weight = torch.tensor([[0.1, -5.0, 2.0, 0.0], [-0.2, 3.0, 0.3, -1.0]])
    assert active_positions(magnitude_mask(weight, 3), 8).tolist() == [1, 2, 5]


def test_a_magnitude_mask_gives_ties_to_the_lower_position() -> None:
    weight = torch.tensor([1.0, -2.0, 2.0, -2.0, 1.0, 0.0, 2.0, 1.0])
    assert active_positions(magnitude_mask(weight, 3), 8).tolist() == [1, 2, 3]
    assert active_positions(magnitude_mask(weight, 5), 8).tolist() == [0, 1, 2, 3, 6]


def test_a_magnitude_mask_fills_up_with_zeros() -> None:
    weight = torch.tensor([0.0, 0.0, 7.0, 0.0, 0.0, -3.0, 0.0, 0.0])
    assert active_positions(magnitude_mask(weight, 4), 8).tolist() == [0, 1, 2, 5]


@given(weights=st.lists(st.integers(-2, 2), min_size=1, max_size=40), data=st.data())
@settings(deadline=None)
def test_a_magnitude_mask_has_exactly_its_count(weights: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(weights)))
    weight = torch.tensor(weights, dtype=torch.float32)
    kept = unpack_bits(magnitude_mask(weight, count), len(weights))
    assert int(kept.sum()) == count
    if 0 < count < len(weights):
        assert weight[kept].abs().min() >= weight[~kept].abs().max()
