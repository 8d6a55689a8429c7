"""Bit-packed masks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from fedmef.sparsity.arrays import Bits
from fedmef.sparsity.masks import enliven, packed_size

bit_lists = st.lists(st.booleans(), max_size=70)


def bits(*ones_and_zeros: int) -> Bits:
    return np.array(ones_and_zeros, dtype=np.bool_)


def test_the_first_position_is_the_lowest_bit() -> None:
    assert pack_bits(bits(1, 0, 0, 0, 0, 0, 0, 0)).tolist() == [1]
    assert pack_bits(bits(0, 1, 0, 0, 0, 0, 0, 1)).tolist() == [2 + 128]
    assert pack_bits(bits(1, 1, 1, 1, 1, 1, 1, 1)).tolist() == [255]


def test_the_last_byte_is_padded_with_zeros() -> None:
    assert pack_bits(bits(1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1)).tolist() == [255, 5]


def test_a_matrix_is_packed_row_by_row() -> None:
    matrix = bits(1, 0, 0, 0, 0, 1, 1, 0).reshape(2, 4)
    assert pack_bits(matrix).tolist() == [1 + 32 + 64]
    assert pack_bits(matrix.T).tolist() == [1 + 8 + 32]  # columns (1, 0), (0, 1), (0, 1), (0, 0)


@given(ones_and_zeros=bit_lists)
@settings(deadline=None)
def test_a_bit_is_worth_two_to_the_power_of_its_place(ones_and_zeros: list[bool]) -> None:
    packed = pack_bits(bits(*ones_and_zeros))
    assert packed.dtype == np.uint8
    assert packed.size == packed_size(len(ones_and_zeros))
    number = sum(1 << place for place, one in enumerate(ones_and_zeros) if one)
    assert packed.tobytes() == number.to_bytes(packed.size, "little")


@given(ones_and_zeros=bit_lists)
@settings(deadline=None)
def test_unpacking_undoes_packing(ones_and_zeros: list[bool]) -> None:
    assert unpack_bits(pack_bits(bits(*ones_and_zeros)), len(ones_and_zeros)).tolist() == ones_and_zeros


@given(
    ones_and_zeros=st.lists(st.booleans(), min_size=20, max_size=70),
    start=st.integers(0, 9),
    step=st.integers(1, 3),
)
@settings(deadline=None)
def test_views_with_an_offset_or_gaps_are_packed_like_copies(
    ones_and_zeros: list[bool], start: int, step: int
) -> None:
    view = bits(*ones_and_zeros)[start::step]
    assert pack_bits(view).tolist() == pack_bits(view.copy()).tolist()


def test_an_expanded_bit_is_packed_as_often_as_it_is_repeated() -> None:
    assert pack_bits(np.broadcast_to(np.True_, (2, 8))).tolist() == [255, 255]


def test_nothing_packs_to_nothing() -> None:
    assert pack_bits(bits()).size == 0
    assert unpack_bits(pack_bits(bits()), 0).size == 0
    assert active_positions(pack_bits(bits()), 0).size == 0


def test_unpacked_bits_are_booleans_that_can_select() -> None:
    active = unpack_bits(np.array([0b101], dtype=np.uint8), 3)
    assert active.dtype == np.bool_
    assert np.array([7, 8, 9])[active].tolist() == [7, 9]


def test_counting_counts_padding_that_is_set_too() -> None:
    # This is how damaged masks are noticed: 3 positions, 4 ones.
    padded = np.array([0b1111], dtype=np.uint8)
    assert count_bits(padded) == 4
    assert active_positions(padded, 3).tolist() == [0, 1, 2]


@given(ones_and_zeros=bit_lists)
@settings(deadline=None)
def test_positions_and_counts_are_those_of_the_ones(ones_and_zeros: list[bool]) -> None:
    packed = pack_bits(bits(*ones_and_zeros))
    positions = active_positions(packed, len(ones_and_zeros))
    assert positions.tolist() == [position for position, one in enumerate(ones_and_zeros) if one]
    assert count_bits(packed) == sum(ones_and_zeros)
    assert mask_from_positions(positions, len(ones_and_zeros)).tolist() == packed.tolist()


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
    mask = random_mask(size, count, np.random.default_rng(seed))
    assert mask.shape == ((size + 7) // 8,)
    assert count_bits(mask) == count
    assert active_positions(mask, size).size == count


def test_only_the_generator_decides_a_random_mask() -> None:
    first, same, other = (random_mask(800, 80, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_every_position_is_equally_likely_in_a_random_mask() -> None:
    generator = np.random.default_rng(0)
    hits = np.sum([unpack_bits(random_mask(11, 3, generator), 11) for _ in range(2000)], axis=0)
    # 2000 draws of 3 in 11: 545 each, with a standard deviation of 20
    assert np.abs(hits - 2000 * 3 / 11).max() < 5 * 20


def test_a_magnitude_mask_keeps_the_largest() -> None:
    weight = np.array([[0.1, -5.0, 2.0, 0.0], [-0.2, 3.0, 0.3, -1.0]])
    assert active_positions(magnitude_mask(weight, 3), 8).tolist() == [1, 2, 5]


def test_a_magnitude_mask_gives_ties_to_the_lower_position() -> None:
    weight = np.array([1.0, -2.0, 2.0, -2.0, 1.0, 0.0, 2.0, 1.0])
    assert active_positions(magnitude_mask(weight, 3), 8).tolist() == [1, 2, 3]
    assert active_positions(magnitude_mask(weight, 5), 8).tolist() == [0, 1, 2, 3, 6]


def test_a_magnitude_mask_fills_up_with_zeros() -> None:
    weight = np.array([0.0, 0.0, 7.0, 0.0, 0.0, -3.0, 0.0, 0.0])
    assert active_positions(magnitude_mask(weight, 4), 8).tolist() == [0, 1, 2, 5]


@given(weights=st.lists(st.integers(-2, 2), min_size=1, max_size=40), data=st.data())
@settings(deadline=None)
def test_a_magnitude_mask_has_exactly_its_count(weights: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(weights)))
    weight = np.array(weights, dtype=np.float32)
    kept = unpack_bits(magnitude_mask(weight, count), len(weights))
    assert int(kept.sum()) == count
    if 0 < count < len(weights):
        assert np.abs(weight[kept]).min() >= np.abs(weight[~kept]).max()


def enlivened(mask: Bits, seed: int = 0) -> Bits:
    packed = enliven(pack_bits(mask), mask.shape, np.random.default_rng(seed))
    return unpack_bits(packed, mask.size).reshape(mask.shape)


def test_a_filter_without_weights_gets_two_of_one_that_has_four() -> None:
    alive = enlivened(bits(1, 1, 1, 1, 0, 0, 0, 0).reshape(2, 4))
    assert alive.sum(1).tolist() == [2, 2]


def test_a_filter_with_one_weight_keeps_it_and_gets_another() -> None:
    mask = bits(1, 1, 1, 0, 0, 0, 1, 0).reshape(2, 4)
    for seed in range(10):
        alive = enlivened(mask, seed)
        assert alive.sum(1).tolist() == [2, 2]
        assert alive[1, 2]
        assert not alive[0, 3]


def test_weights_of_filters_that_cannot_all_live_are_put_together() -> None:
    alive = enlivened(np.eye(4, dtype=np.bool_))  # four filters of one weight each
    assert sorted(alive.sum(1).tolist()) == [0, 0, 2, 2]


def test_filters_that_have_more_weights_live_on() -> None:
    mask = bits(1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1).reshape(4, 3)
    for seed in range(10):
        # Of four weights two filters can live: the one that has two, and one of those that have one.
        assert enlivened(mask, seed).sum(1)[1] == 2


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 1, 0], [0, 1, 1]],  # two each
        [[1, 1, 1], [1, 1, 1]],
        [[0, 0, 0], [0, 1, 0]],  # one alone cannot live anywhere
        [[0, 0, 0], [0, 0, 0]],
        [[1], [1]],  # filters of one weight cannot have two
    ],
)
def test_a_mask_that_cannot_be_better_stays_as_it_is(rows: list[list[int]]) -> None:
    mask = np.array(rows, dtype=np.bool_)
    assert np.array_equal(enlivened(mask), mask)


@given(filters=st.integers(1, 12), size=st.integers(2, 9), share=st.floats(0, 1), seed=st.integers(0, 9999))
@settings(deadline=None, max_examples=300)
def test_as_few_filters_as_possible_have_fewer_than_two_weights(
    filters: int, size: int, share: float, seed: int
) -> None:
    count = round(filters * size * share)
    packed = random_mask(filters * size, count, np.random.default_rng(seed))
    mask = unpack_bits(packed, filters * size).reshape(filters, size)
    alive = enlivened(mask, seed)
    assert alive.sum() == count
    assert (alive.sum(1) >= 2).sum() == min(filters, count // 2)
    if (mask.sum(1) >= 2).all():
        assert np.array_equal(alive, mask)


def test_only_the_generator_decides_where_weights_move() -> None:
    mask = np.zeros((8, 20), dtype=np.bool_)
    mask[:4] = True
    assert np.array_equal(enlivened(mask, 1), enlivened(mask, 1))
    assert not np.array_equal(enlivened(mask, 1), enlivened(mask, 2))


def test_a_mask_that_is_enlivened_is_not_changed_in_place() -> None:
    packed = pack_bits(bits(1, 1, 1, 1, 0, 0, 0, 0))
    enliven(packed, (2, 4), np.random.default_rng(0))
    assert packed.tolist() == [0b1111]
