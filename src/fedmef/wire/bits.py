"""Numbers of a few bits each, packed without gaps; eight bits a byte, lowest bit first.

Numbers lie bit plane by bit plane: all their lowest bits, then all their second bits, and so on. Whole planes
are fast to write and to read, and only the end is padded.
"""

import numpy as np

from fedmef.errors import MessageError
from fedmef.sparsity.arrays import Bits, Bytes, Integers
from fedmef.sparsity.masks import pack_bits, packed_size, unpack_bits


def unpack_checked(packed: Bytes, count: int) -> Bits:
    """`count` bits; refuses another length and padding that is not 0."""
    if packed.size != packed_size(count):
        raise MessageError(f"{packed.size} bytes where {count} bits are expected")
    if count % 8 and packed[-1] >> (count % 8):
        raise MessageError("padding bits are set")
    return unpack_bits(packed, count)


def pack_numbers(numbers: Integers, width: int) -> Bytes:
    """Numbers below 2^width, `width` bits each."""
    planes = np.empty((width, numbers.size), dtype=np.bool_)
    for bit in range(width):
        np.not_equal(numbers & (1 << bit), 0, out=planes[bit])
    return pack_bits(planes)


def unpack_numbers(packed: Bytes, count: int, width: int) -> Integers:
    """The inverse of `pack_numbers`."""
    planes = unpack_checked(packed, count * width).reshape(width, count)
    numbers = np.zeros(count, dtype=np.int64)
    for bit in range(width):
        numbers |= planes[bit].astype(np.int64) << bit
    return numbers
