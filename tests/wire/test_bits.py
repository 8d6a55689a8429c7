"""Numbers of a few bits, packed without gaps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.errors import MessageError
from fedmef.sparsity.arrays import Bytes, Integers
from fedmef.sparsity.masks import packed_size
from fedmef.wire.bits import pack_numbers, unpack_checked, unpack_numbers
from fedmef.wire.schemes import index_bits


def array(*numbers: int) -> Integers:
    return np.array(numbers, dtype=np.int64)


def packed(*numbers: int) -> Bytes:
    return np.array(numbers, dtype=np.uint8)


def test_numbers_lie_bit_plane_by_bit_plane() -> None:
    # 1, 2, 3 are 01, 10, 11: the lowest bits are 1, 0, 1, the upper ones 0, 1, 1.
    assert pack_numbers(array(1, 2, 3), 2).tolist() == [0b110101]
    assert unpack_numbers(packed(0b110101), 3, 2).tolist() == [1, 2, 3]


@settings(max_examples=100, deadline=None)
@given(numbers=st.lists(st.integers(0, 2**24 - 1), max_size=50), spare=st.integers(0, 3))
def test_numbers_of_a_few_bits_come_back(numbers: list[int], spare: int) -> None:
    width = index_bits(max(numbers, default=0) + 1) + spare
    code = pack_numbers(array(*numbers), width)
    assert code.size == packed_size(width * len(numbers))
    assert unpack_numbers(code, len(numbers), width).tolist() == numbers


def test_numbers_of_no_bits_take_none_and_are_all_zero() -> None:
    assert pack_numbers(array(0, 0, 0), 0).size == 0
    assert unpack_numbers(packed(), 3, 0).tolist() == [0, 0, 0]


def test_checked_bits_are_unpacked() -> None:
    assert unpack_checked(packed(0b101), 3).tolist() == [True, False, True]
    assert unpack_checked(packed(), 0).tolist() == []
    assert unpack_checked(packed(0xFF), 8).all()


@pytest.mark.parametrize("code", [packed(), packed(0, 0)])
def test_another_length_is_refused(code: Bytes) -> None:
    with pytest.raises(MessageError, match=f"{code.size} bytes where 3 bits are expected"):
        unpack_checked(code, 3)


@pytest.mark.parametrize("byte", [0b1000, 0b10000101, 0xFF])
def test_padding_that_is_set_is_refused(byte: int) -> None:
    with pytest.raises(MessageError, match="padding"):
        unpack_checked(packed(byte), 3)
    with pytest.raises(MessageError, match="padding"):
        unpack_numbers(packed(byte), 3, 1)
