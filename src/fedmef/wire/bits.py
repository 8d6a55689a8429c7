"""Numbers of a few bits each, packed without gaps; eight bits a byte, lowest bit first.

Numbers lie bit plane by bit plane: all their lowest bits, then all their second bits, and so on. Whole planes
are fast to write and to read, and only the end is padded.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedmef.wire.errors import MessageError

Bytes: TypeAlias = NDArray[np.uint8]
Bits: TypeAlias = NDArray[np.bool_]
Integers: TypeAlias = NDArray[np.int64]


def byte_count(bits: int) -> int:
    """The bytes that hold so many bits."""
    return -(-bits // 8)


def pack(bits: Bits) -> Bytes:
    """Bits as bytes, padded with 0."""
    return np.packbits(bits, bitorder="little")


def unpack(packed: Bytes, count: int) -> Bits:
    """The inverse of `pack`; refuses another length and padding that is not 0."""
    if packed.size != byte_count(count):
        raise MessageError(f"{packed.size} bytes where {count} bits are expected")
    if count % 8 and packed[-1] >> (count % 8):
        raise MessageError("padding bits are set")
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)


def pack_numbers(numbers: Integers, width: int) -> Bytes:
    """Numbers below 2^width, `width` bits each."""
    planes = np.empty((width, numbers.size), dtype=np.bool_)
    for bit in range(width):
        np.not_equal(numbers & (1 << bit), 0, out=planes[bit])
    return pack(planes)


def unpack_numbers(packed: Bytes, count: int, width: int) -> Integers:
    """The inverse of `pack_numbers`."""
    planes = unpack(packed, count * width).reshape(width, count)
    numbers = np.zeros(count, dtype=np.int64)
    for bit in range(width):
        numbers |= planes[bit].astype(np.int64) << bit
    return numbers
