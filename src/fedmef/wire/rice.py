"""Golomb-Rice codes of the gaps between positions: nearly the entropy of a random mask.

A gap is split into its lowest k bits, which are packed as they are, and the rest in unary: that many zeros
and a one. Everything is done for all gaps at once: the running sum says where the ones of the unary part are.
"""

import math

import numpy as np

from fedmef.errors import MessageError
from fedmef.sparsity.arrays import Bytes, Integers
from fedmef.sparsity.masks import pack_bits, packed_size
from fedmef.wire.bits import pack_numbers, unpack_numbers

MAXIMUM_LOW_BITS = 24  # the largest k: gaps stay far from the end of 64-bit integers


def encode_gaps(positions: Integers) -> tuple[int, Bytes, Bytes]:
    """Ascending positions as k, the low bits of the gaps, and the unary rest."""
    gaps = np.diff(positions, prepend=-1) - 1
    low = _best_low_bits(gaps)
    ends = np.cumsum((gaps >> low) + 1)
    unary = np.zeros(int(ends[-1]) if ends.size else 0, dtype=np.bool_)
    unary[ends - 1] = True
    return low, pack_numbers(gaps, low), pack_bits(unary)


def decode_gaps(low: int, code: Bytes, count: int, size: int) -> Integers:
    """The inverse: `count` positions below `size`, ascending; `code` is the low bits and the unary rest."""
    if low > MAXIMUM_LOW_BITS:
        raise MessageError(f"gaps with {low} low bits")
    split = packed_size(count * low)
    remainders, unary = unpack_numbers(code[:split], count, low), code[split:]
    if unary.size > packed_size(size):
        raise MessageError(f"{unary.size} bytes of gaps between {size} positions")
    ones = np.flatnonzero(np.unpackbits(unary, bitorder="little").view(np.bool_))
    if ones.size != count or unary.size != (ones[-1] // 8 + 1 if count else 0):
        raise MessageError(f"the gaps of {ones.size} positions instead of {count}, or bytes after them")
    gaps = (np.diff(ones, prepend=-1) - 1 << low) | remainders
    positions: Integers = np.cumsum(gaps + 1) - 1
    if count and positions[-1] >= size:
        raise MessageError(f"position {positions[-1]} of {size}")
    return positions


def expected_bits(size: int, nonzero: int) -> int:
    """What the positions of a random mask take, at the best k."""
    if nonzero == 0:
        return 0
    if nonzero == size:
        return size
    pruned = 1 - nonzero / size
    return min(_expected_bits(nonzero, pruned, low) for low in range(MAXIMUM_LOW_BITS + 1))


def _expected_bits(nonzero: int, pruned: float, low: int) -> int:
    longer = pruned ** (1 << low)  # the chance that a gap continues for another 2^k positions
    return math.ceil(nonzero * (1 + low + longer / (1 - longer))) if longer < 1 else 1 << 62


def _best_low_bits(gaps: Integers) -> int:
    """One more low bit costs a bit a gap and halves the unary part: k grows while that pays."""
    low = 0
    while low < MAXIMUM_LOW_BITS:
        halved = gaps >> 1
        if int(gaps.sum()) - int(halved.sum()) <= gaps.size:
            break
        gaps, low = halved, low + 1
    return low
