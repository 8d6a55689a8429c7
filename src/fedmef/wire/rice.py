"""Golomb-Rice codes of the gaps between positions: nearly the entropy of a random mask.

A gap is split into its lowest k bits, which are packed as they are, and the rest in unary: so many zeros and
a one. Everything is done for all gaps at once: the ones of the unary part stand where the running sum says.
"""

import numpy as np

from fedmef.wire.bits import Bytes, Integers, byte_count, pack, pack_numbers, unpack_numbers
from fedmef.wire.errors import MessageError
from fedmef.wire.sizes import MAXIMUM_RICE_BITS


def encode_gaps(positions: Integers) -> tuple[int, Bytes, Bytes]:
    """Ascending positions as k, the low bits of the gaps, and the unary rest."""
    gaps = np.diff(positions, prepend=-1) - 1
    low = _best_low_bits(gaps)
    ends = np.cumsum((gaps >> low) + 1)
    unary = np.zeros(int(ends[-1]) if ends.size else 0, dtype=np.bool_)
    unary[ends - 1] = True
    return low, pack_numbers(gaps, low), pack(unary)


def decode_gaps(low: int, code: Bytes, count: int, size: int) -> Integers:
    """The inverse: `count` positions below `size`, ascending; `code` is the low bits and the unary rest."""
    if low > MAXIMUM_RICE_BITS:
        raise MessageError(f"gaps with {low} low bits")
    split = byte_count(count * low)
    remainders, unary = unpack_numbers(code[:split], count, low), code[split:]
    if unary.size > byte_count(size):
        raise MessageError(f"{unary.size} bytes of gaps between {size} positions")
    ones = np.flatnonzero(np.unpackbits(unary, bitorder="little").view(np.bool_))
    if ones.size != count or unary.size != (ones[-1] // 8 + 1 if count else 0):
        raise MessageError(f"the gaps of {ones.size} positions instead of {count}, or bytes behind them")
    gaps = (np.diff(ones, prepend=-1) - 1 << low) | remainders
    positions: Integers = np.cumsum(gaps + 1) - 1
    if count and positions[-1] >= size:
        raise MessageError(f"position {positions[-1]} of {size}")
    return positions


def _best_low_bits(gaps: Integers) -> int:
    """One more low bit costs a bit a gap and halves the unary part: k grows while that pays."""
    low = 0
    while low < MAXIMUM_RICE_BITS:
        halved = gaps >> 1
        if int(gaps.sum()) - int(halved.sum()) <= gaps.size:
            break
        gaps, low = halved, low + 1
    return low
