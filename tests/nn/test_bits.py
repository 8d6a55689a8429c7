"""Packed masks as tensors are the same as NumPy's, and pack any view."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmef.nn import bits as twin
from fedmef.sparsity import masks

bit_lists = st.lists(st.booleans(), max_size=70)


def vector(*ones_and_zeros: int) -> Tensor:
    return torch.tensor(ones_and_zeros, dtype=torch.bool)


def test_the_first_position_is_the_lowest_bit_and_the_last_byte_is_padded() -> None:
    assert twin.pack_bits(vector(0, 1, 0, 0, 0, 0, 0, 1)).tolist() == [2 + 128]
    assert twin.pack_bits(vector(1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1)).tolist() == [255, 5]


@given(ones_and_zeros=bit_lists)
@settings(deadline=None)
def test_packing_and_unpacking_are_numpys(ones_and_zeros: list[bool]) -> None:
    array = np.array(ones_and_zeros, dtype=np.bool_)
    packed = twin.pack_bits(torch.from_numpy(array))
    assert packed.dtype == torch.uint8
    np.testing.assert_array_equal(packed.numpy(), masks.pack_bits(array))
    unpacked = twin.unpack_bits(packed, array.size)
    assert unpacked.dtype == torch.bool
    np.testing.assert_array_equal(unpacked.numpy(), masks.unpack_bits(packed.numpy(), array.size))
    assert unpacked.tolist() == ones_and_zeros


@given(ones_and_zeros=bit_lists)
@settings(deadline=None)
def test_positions_counts_and_masks_are_numpys(ones_and_zeros: list[bool]) -> None:
    array = np.array(ones_and_zeros, dtype=np.bool_)
    packed = masks.pack_bits(array)
    tensor = torch.from_numpy(packed)
    positions = twin.active_positions(tensor, array.size)
    assert positions.dtype == torch.int64
    np.testing.assert_array_equal(positions.numpy(), masks.active_positions(packed, array.size))
    assert twin.count_bits(tensor) == masks.count_bits(packed) == sum(ones_and_zeros)
    np.testing.assert_array_equal(twin.mask_from_positions(positions, array.size).numpy(), packed)


@given(packed=st.binary(max_size=9), data=st.data())
@settings(deadline=None)
def test_bits_beyond_the_size_are_treated_as_numpy_does(packed: bytes, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 8 * len(packed)))
    array = np.frombuffer(packed, dtype=np.uint8).copy()
    tensor = torch.from_numpy(array)
    assert twin.unpack_bits(tensor, size).tolist() == masks.unpack_bits(array, size).tolist()
    assert twin.active_positions(tensor, size).tolist() == masks.active_positions(array, size).tolist()
    assert twin.count_bits(tensor) == masks.count_bits(array)


@given(size=st.integers(60_000, 140_000), density=st.floats(0, 1), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_large_masks_are_numpys(size: int, density: float, seed: int) -> None:
    array = np.random.default_rng(seed).random(size) < density
    packed = twin.pack_bits(torch.from_numpy(array))
    np.testing.assert_array_equal(packed.numpy(), masks.pack_bits(array))
    np.testing.assert_array_equal(twin.active_positions(packed, size).numpy(), np.flatnonzero(array))


@given(ones_and_zeros=bit_lists)
@settings(deadline=None)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_factors_are_the_bits_as_numbers(dtype: torch.dtype, ones_and_zeros: list[bool]) -> None:
    packed = twin.pack_bits(torch.tensor(ones_and_zeros, dtype=torch.bool))
    factors = twin.unpack_factors(packed, len(ones_and_zeros), dtype)
    assert factors.dtype == dtype
    assert factors.tolist() == [float(one) for one in ones_and_zeros]
    factors.fill_(7)  # a new tensor, which nobody else sees
    assert twin.unpack_factors(packed, len(ones_and_zeros), dtype).tolist() == [
        float(one) for one in ones_and_zeros
    ]


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
    assert twin.pack_bits(view).tolist() == masks.pack_bits(view.numpy()).tolist()


@pytest.mark.parametrize("start", range(1, 8))
def test_whole_bytes_that_start_in_the_middle_of_a_word_are_packed(start: int) -> None:
    view = torch.arange(24)[start : start + 16].remainder(3) == 0
    offset = torch.zeros(24, dtype=torch.bool)[start : start + 16].copy_(view)
    assert offset.storage_offset() == start
    assert twin.pack_bits(offset).tolist() == masks.pack_bits(view.numpy()).tolist()


def test_a_matrix_is_packed_row_by_row_however_it_lies_in_memory() -> None:
    matrix = vector(1, 0, 0, 0, 0, 1, 1, 0).view(2, 4)
    assert twin.pack_bits(matrix).tolist() == [1 + 32 + 64]
    assert twin.pack_bits(matrix.t()).tolist() == [1 + 8 + 32]  # columns (1, 0), (0, 1), (0, 1), (0, 0)


def test_an_expanded_bit_is_packed_as_often_as_it_is_repeated() -> None:
    assert twin.pack_bits(torch.tensor(True).expand(2, 8)).tolist() == [255, 255]


def test_nothing_packs_to_nothing() -> None:
    assert twin.pack_bits(vector()).numel() == 0
    assert twin.unpack_bits(twin.pack_bits(vector()), 0).numel() == 0
    assert twin.mask_from_positions(torch.empty(0, dtype=torch.int64), 0).numel() == 0
