"""Golomb-Rice codes of gaps."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.errors import MessageError
from fedmef.sparsity.arrays import Bytes, Integers
from fedmef.wire.rice import MAXIMUM_LOW_BITS, decode_gaps, encode_gaps, expected_bits


def array(*numbers: int) -> Integers:
    return np.array(numbers, dtype=np.int64)


def code_of(positions: Integers) -> tuple[int, Bytes]:
    low, remainders, unary = encode_gaps(positions)
    return low, np.concatenate([remainders, unary])


def test_gaps_by_hand() -> None:
    # gaps 0, 2, 5; with k = 1 the low bits are 0, 0, 1, and the rest 0, 1, 2 in unary is 1 01 001
    low, remainders, unary = encode_gaps(array(0, 3, 9))
    assert (low, remainders.tolist(), unary.tolist()) == (1, [0b100], [0b100101])
    assert decode_gaps(1, np.array([0b100, 0b100101], dtype=np.uint8), 3, 10).tolist() == [0, 3, 9]


def test_neighbours_have_no_low_bits() -> None:
    assert encode_gaps(array(0, 1, 2, 3))[0] == 0
    assert [part.tolist() for part in encode_gaps(array(0, 1, 2, 3))[1:]] == [[], [0b1111]]


@given(positions=st.sets(st.integers(0, 3000), max_size=40), beyond=st.integers(1, 500))
@settings(deadline=None)
def test_positions_come_back(positions: set[int], beyond: int) -> None:
    ascending = array(*sorted(positions))
    low, code = code_of(ascending)
    assert decode_gaps(low, code, len(positions), 3000 + beyond).tolist() == ascending.tolist()


def test_k_is_the_one_that_takes_least() -> None:
    def bits(gaps: Integers, low: int) -> int:
        return int(gaps.size * (low + 1) + (gaps >> low).sum())

    random = np.random.default_rng(0)
    for count in (3, 30, 300, 2900):
        positions = np.sort(random.choice(3000, count, replace=False))
        gaps = np.diff(positions, prepend=-1) - 1
        best = min(bits(gaps, low) for low in range(MAXIMUM_LOW_BITS + 1))
        assert bits(gaps, encode_gaps(positions)[0]) == best


def test_the_longest_gap_still_comes_back() -> None:
    low, code = code_of(array(2**28))
    assert low == MAXIMUM_LOW_BITS
    assert code.size < 8
    assert decode_gaps(low, code, 1, 2**28 + 1).tolist() == [2**28]


@pytest.mark.parametrize(
    ("low", "code", "count", "reason"),
    [
        (25, [0, 0, 0, 0, 1], 1, "25 low bits"),
        (0, [0b111], 2, "3 positions instead of 2"),
        (0, [0b1], 2, "1 positions instead of 2"),
        (0, [0b11, 0], 2, "bytes after them"),
        (0, [0], 0, "bytes after them"),
        (1, [0b11, 0b100010], 2, "position 11 of 10"),
        (0, [1, 1, 1], 3, "3 bytes of gaps between 10 positions"),
        (8, [1], 2, "1 bytes where 16 bits are expected"),
    ],
)
def test_codes_that_make_no_sense_are_refused(low: int, code: list[int], count: int, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        decode_gaps(low, np.array(code, dtype=np.uint8), count, 10)


@pytest.mark.parametrize("size", [1, 7, 1000, 10**9])
def test_the_ends_of_what_is_expected_are_exact(size: int) -> None:
    assert expected_bits(size, 0) == 0
    assert expected_bits(size, size) == size


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1, 0.3])
def test_what_is_expected_comes_close_to_the_entropy(density: float) -> None:
    entropy = -(density * math.log2(density) + (1 - density) * math.log2(1 - density))
    assert entropy < expected_bits(10**6, int(10**6 * density)) / 10**6 < 1.05 * entropy


def test_one_position_among_very_many_takes_a_few_bits() -> None:
    assert expected_bits(2**31, 1) < 300  # k ends at 24: 128 times in unary
