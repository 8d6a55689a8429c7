"""Storage schemes as code: the positions of a sparse tensor's active elements, as bytes and back.

A code is a header, then parts that are each padded to whole bytes and take exactly the bits of the formula
(`fedmef.wire.sizes`). The header is 5 bytes: the scheme's number, and how many positions there are; `rice`
adds k in one byte, `csr` and `csc` the row (column) of the last position in four. Values are no part of a
code: they stand in the order of positions whatever the scheme. A `dense` code is a header alone: there the
values themselves say which positions are active (`fedmef.wire.sparse`).
"""

import struct
from typing import assert_never

import numpy as np

from fedmef.wire.bits import Bytes, Integers, byte_count, pack, pack_numbers, unpack, unpack_numbers
from fedmef.wire.errors import MessageError
from fedmef.wire.rice import decode_gaps, encode_gaps
from fedmef.wire.sizes import SCHEMES, Scheme, index_bits

_HEADER = struct.Struct("<BI")
_LAST = struct.Struct("<I")
HEADER_BYTES = _HEADER.size


def encode_positions(positions: Integers, rows: int, columns: int, scheme: Scheme) -> Bytes:
    """Ascending positions of a flattened matrix, in a scheme."""
    header = _HEADER.pack(SCHEMES.index(scheme), positions.size)
    match scheme:
        case "dense":
            return _join(header)
        case "bitmap":
            bits = np.zeros(rows * columns, dtype=np.bool_)
            bits[positions] = True
            return _join(header, pack(bits))
        case "coo":
            return _join(header, pack_numbers(positions, index_bits(rows * columns)))
        case "csr":
            return _join(header, *_encode_rows(positions, rows, columns))
        case "csc":
            return _join(header, *_encode_rows(_transposed(positions, rows, columns), columns, rows))
        case "rice":
            low, remainders, unary = encode_gaps(positions)
            return _join(header, bytes([low]), remainders, unary)
    assert_never(scheme)


def read_header(code: Bytes, size: int) -> tuple[Scheme, int]:
    """The scheme of a code, and how many of `size` positions it names."""
    if code.size < HEADER_BYTES:
        raise MessageError(f"a code of {code.size} bytes is no code")
    number, count = _HEADER.unpack(code[:HEADER_BYTES].tobytes())
    if number >= len(SCHEMES):
        raise MessageError(f"there is no storage scheme of number {number}")
    if count > size:
        raise MessageError(f"{count} active positions of {size}")
    return SCHEMES[number], count


def decode_positions(code: Bytes, rows: int, columns: int) -> Integers:
    """The inverse of `encode_positions`: distinct, ascending and in range, or a `MessageError`."""
    size = rows * columns
    scheme, count = read_header(code, size)
    body = code[HEADER_BYTES:]
    match scheme:
        case "dense":
            raise MessageError("a dense code has no positions without its values")
        case "bitmap":
            positions: Integers = np.flatnonzero(unpack(body, size))
            if positions.size != count:
                raise MessageError(f"a bitmap of {positions.size} positions instead of {count}")
            return positions
        case "coo":
            return _checked(unpack_numbers(body, count, index_bits(size)), size)
        case "csr":
            return _decode_rows(body, count, rows, columns)
        case "csc":
            return _transposed(_decode_rows(body, count, columns, rows), columns, rows)
        case "rice":
            if not body.size:
                raise MessageError("a rice code without k")
            return decode_gaps(int(body[0]), body[1:], count, size)
    assert_never(scheme)


def _encode_rows(positions: Integers, rows: int, columns: int) -> tuple[bytes, Bytes, Bytes]:
    """CSR: each position's column, and where each row starts.

    The formula has room for starts below the number of positions, but an empty row at the end starts behind
    them. Such rows are told by the last row that has a position, in the header.
    """
    row, column = np.divmod(positions, columns)
    starts = np.searchsorted(row, np.arange(rows)).clip(max=max(positions.size - 1, 0))
    last = int(row[-1]) if row.size else 0
    return (
        _LAST.pack(last),
        pack_numbers(column, index_bits(columns)),
        pack_numbers(starts, index_bits(positions.size)),
    )


def _decode_rows(body: Bytes, count: int, rows: int, columns: int) -> Integers:
    if body.size < _LAST.size:
        raise MessageError("a compressed code without its last row")
    (last,) = _LAST.unpack(body[: _LAST.size].tobytes())
    split = _LAST.size + byte_count(count * index_bits(columns))
    column = unpack_numbers(body[_LAST.size : split], count, index_bits(columns))
    starts = unpack_numbers(body[split:], rows, index_bits(count))
    if last >= max(rows, 1) or (last and not count):
        raise MessageError(f"the last position is in row {last} of {rows}")
    if count == 0:
        return column
    if (
        starts[0]
        or (np.diff(starts) < 0).any()
        or starts[last] >= count
        or (starts[last + 1 :] != count - 1).any()
    ):
        raise MessageError("the rows do not start one behind the other")
    if (column >= columns).any():
        raise MessageError(f"column {column.max()} of {columns}")
    lengths = np.diff(starts[: last + 1], append=count)
    return _checked(np.repeat(np.arange(last + 1) * columns, lengths) + column, rows * columns)


def _transposed(positions: Integers, rows: int, columns: int) -> Integers:
    """Where the positions of a matrix of so many rows and columns are in its transpose, ascending."""
    row, column = np.divmod(positions, columns)
    return np.sort(column * rows + row)


def _checked(positions: Integers, size: int) -> Integers:
    if positions.size and positions[-1] >= size:
        raise MessageError(f"position {positions[-1]} of {size}")
    if (np.diff(positions) <= 0).any():
        raise MessageError("positions are not ascending and distinct")
    return positions


def _join(*parts: bytes | Bytes) -> Bytes:
    return np.concatenate([np.frombuffer(part, dtype=np.uint8) for part in parts])
