"""Storage schemes: how the positions of a sparse tensor's active elements become bytes, and how many.

`n` elements, `m` of them active, `b` bits a value, `r` rows and `c` columns. The first five schemes are the
paper's (appendix); `rice` is ours: Golomb-Rice codes of the gaps between active positions, close to the
entropy of a random mask.

| scheme | bits |
|---|---|
| dense | n·b |
| bitmap | n + m·b |
| coo | m·ceil(log2 n) + m·b |
| csr | m·ceil(log2 c) + r·ceil(log2 m) + m·b |
| csc | m·ceil(log2 r) + c·ceil(log2 m) + m·b |
| rice | about m·(1 + k + q/(1 − q)) + m·b, where q = (1 − m/n)^(2^k), at the best k |

A code is a header of 5 bytes (the scheme's number, and how many positions there are) and a body of parts
that are each padded to whole bytes. `rice` adds k in one byte, `csr` and `csc` the row (column) of the last
position in four. Values are not part of a code: they follow the order of positions whatever the scheme. A
`dense` code has no body: there the values themselves say which positions are active (`fedmef.wire.sparse`).
"""

import math
import struct
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmef.errors import MessageError
from fedmef.sparsity.arrays import Bytes, Integers
from fedmef.sparsity.masks import mask_from_positions, packed_size
from fedmef.wire.bits import pack_numbers, unpack_checked, unpack_numbers
from fedmef.wire.rice import decode_gaps, encode_gaps, expected_bits

Scheme = Literal["dense", "bitmap", "coo", "csr", "csc", "rice"]
Rule = Literal["auto", "paper", "dense", "bitmap", "coo", "csr", "csc", "rice"]

_HEADER = struct.Struct("<BI")
_LAST = struct.Struct("<I")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True)
class StorageScheme:
    """One way to store positions.

    Attributes:
        number: what the first byte of a code says; part of the message format, so it never changes.
    """

    name: ClassVar[Scheme]
    number: ClassVar[int]

    def position_bits(self, nonzero: int, rows: int, columns: int) -> int:
        """What the positions take. Exact, except for `rice`: there, what those of a random mask take."""
        raise NotImplementedError

    def encode(self, positions: Integers, rows: int, columns: int) -> list[bytes | Bytes]:
        """The parts of the body, given ascending positions of a flattened matrix."""
        raise NotImplementedError

    def decode(self, body: Bytes, count: int, rows: int, columns: int) -> Integers:
        """`count` distinct positions in range, ascending, or a `MessageError`."""
        raise NotImplementedError


class Dense(StorageScheme):
    """No positions: every element is there."""

    name, number = "dense", 0

    def position_bits(self, nonzero: int, rows: int, columns: int) -> int:
        return 0

    def encode(self, positions: Integers, rows: int, columns: int) -> list[bytes | Bytes]:
        return []

    def decode(self, body: Bytes, count: int, rows: int, columns: int) -> Integers:
        raise MessageError("a dense code has no positions without its values")


class Bitmap(StorageScheme):
    """One bit an element."""

    name, number = "bitmap", 1

    def position_bits(self, nonzero: int, rows: int, columns: int) -> int:
        return rows * columns

    def encode(self, positions: Integers, rows: int, columns: int) -> list[bytes | Bytes]:
        return [mask_from_positions(positions, rows * columns)]

    def decode(self, body: Bytes, count: int, rows: int, columns: int) -> Integers:
        positions: Integers = np.flatnonzero(unpack_checked(body, rows * columns))
        if positions.size != count:
            raise MessageError(f"a bitmap of {positions.size} positions instead of {count}")
        return positions


class Coordinates(StorageScheme):
    """Each position as a number."""

    name, number = "coo", 2

    def position_bits(self, nonzero: int, rows: int, columns: int) -> int:
        return nonzero * index_bits(rows * columns)

    def encode(self, positions: Integers, rows: int, columns: int) -> list[bytes | Bytes]:
        return [pack_numbers(positions, index_bits(rows * columns))]

    def decode(self, body: Bytes, count: int, rows: int, columns: int) -> Integers:
        return _checked(unpack_numbers(body, count, index_bits(rows * columns)), rows * columns)


class CompressedRows(StorageScheme):
    """Each position's column, and where each row starts.

    The formula has room for starts below the number of positions, but an empty row at the end starts after
    them. The last row that has a position, in the body's first bytes, says which rows those are.
    """

    name: ClassVar[Scheme] = "csr"
    number = 3

    def position_bits(self, nonzero: int, rows: int, columns: int) -> int:
        return nonzero * index_bits(columns) + rows * index_bits(nonzero)

    def encode(self, positions: Integers, rows: int, columns: int) -> list[bytes | Bytes]:
        row, column = np.divmod(positions, columns)
        starts = np.searchsorted(row, np.arange(rows)).clip(max=max(positions.size - 1, 0))
        last = int(row[-1]) if row.size else 0
        return [
            _LAST.pack(last),
            pack_numbers(column, index_bits(columns)),
            pack_numbers(starts, index_bits(positions.size)),
        ]

    def decode(self, body: Bytes, count: int, rows: int, columns: int) -> Integers:
        if body.size < _LAST.size:
            raise MessageError("a compressed code without its last row")
        (last,) = _LAST.unpack(body[: _LAST.size].tobytes())
        split = _LAST.size + packed_size(count * index_bits(columns))
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
            raise MessageError("row offsets are not ascending")
        if (column >= columns).any():
            raise MessageError(f"column {column.max()} of {columns}")
        lengths = np.diff(starts[: last + 1], append=count)
        return _checked(np.repeat(np.arange(last + 1) * columns, lengths) + column, rows * columns)


class CompressedColumns(CompressedRows):
    """The same of the transposed matrix."""

    name, number = "csc", 4

    def position_bits(self, nonzero: int, rows: int, columns: int) -> int:
        return super().position_bits(nonzero, columns, rows)

    def encode(self, positions: Integers, rows: int, columns: int) -> list[bytes | Bytes]:
        return super().encode(_transposed(positions, rows, columns), columns, rows)

    def decode(self, body: Bytes, count: int, rows: int, columns: int) -> Integers:
        return _transposed(super().decode(body, count, columns, rows), columns, rows)


class Rice(StorageScheme):
    """Golomb-Rice codes of the gaps."""

    name, number = "rice", 5

    def position_bits(self, nonzero: int, rows: int, columns: int) -> int:
        return expected_bits(rows * columns, nonzero)

    def encode(self, positions: Integers, rows: int, columns: int) -> list[bytes | Bytes]:
        low, remainders, unary = encode_gaps(positions)
        return [bytes([low]), remainders, unary]

    def decode(self, body: Bytes, count: int, rows: int, columns: int) -> Integers:
        if not body.size:
            raise MessageError("a rice code without k")
        return decode_gaps(int(body[0]), body[1:], count, rows * columns)


_ALL = (Dense(), Bitmap(), Coordinates(), CompressedRows(), CompressedColumns(), Rice())
SCHEMES: dict[Scheme, StorageScheme] = {scheme.name: scheme for scheme in _ALL}
_BY_NUMBER = {scheme.number: scheme for scheme in _ALL}


def index_bits(count: int) -> int:
    """`ceil(log2 count)`: what an index below `count` takes; none when there is nothing to choose."""
    return (count - 1).bit_length() if count > 1 else 0


def scheme_bits(scheme: Scheme, nonzero: int, bits: int, rows: int, columns: int) -> int:
    """The scheme's formula; `bits` is 0 for positions alone."""
    values = rows * columns if scheme == "dense" else nonzero
    return SCHEMES[scheme].position_bits(nonzero, rows, columns) + values * bits


def choose_scheme(rule: Rule, nonzero: int, bits: int, rows: int, columns: int) -> Scheme:
    """The scheme that a rule takes: `auto` the smallest, `paper` by density, a scheme's name always that one.

    Positions alone (`bits` 0) are never dense: a bitmap is the densest form that they have.
    """
    if rule == "auto":
        candidates = [scheme for scheme in SCHEMES if bits or scheme != "dense"]
        return min(candidates, key=lambda scheme: scheme_bits(scheme, nonzero, bits, rows, columns))
    scheme = _by_density(nonzero, rows, columns) if rule == "paper" else rule
    return "bitmap" if scheme == "dense" and not bits else scheme


def most_code_bytes(count: int, rows: int, columns: int) -> int:
    """No scheme takes more for this many positions; most take far less."""
    return 32 + 4 * (count + rows + columns) + rows * columns // 4


def encode_positions(positions: Integers, rows: int, columns: int, scheme: Scheme) -> Bytes:
    """Ascending positions of a flattened matrix, in a scheme."""
    chosen = SCHEMES[scheme]
    parts = [_HEADER.pack(chosen.number, positions.size), *chosen.encode(positions, rows, columns)]
    return np.concatenate([np.frombuffer(part, dtype=np.uint8) for part in parts])


def read_header(code: Bytes, size: int) -> tuple[StorageScheme, int]:
    """The scheme of a code, and how many of `size` positions it names."""
    if code.size < HEADER_BYTES:
        raise MessageError(f"a code of {code.size} bytes is no code")
    number, count = _HEADER.unpack(code[:HEADER_BYTES].tobytes())
    if number not in _BY_NUMBER:
        raise MessageError(f"there is no storage scheme of number {number}")
    if count > size:
        raise MessageError(f"{count} active positions of {size}")
    return _BY_NUMBER[number], count


def decode_positions(code: Bytes, rows: int, columns: int) -> Integers:
    """The inverse of `encode_positions`: distinct, ascending and in range, or a `MessageError`."""
    scheme, count = read_header(code, rows * columns)
    return scheme.decode(code[HEADER_BYTES:], count, rows, columns)


def _by_density(nonzero: int, rows: int, columns: int) -> Scheme:
    """The appendix's rule. A layer pruned to 90 % counts as 10 % dense, though its count is rounded down."""
    dense_from: tuple[tuple[float, Scheme], ...] = ((0.9, "dense"), (0.3, "bitmap"), (0.1, "coo"))
    for density, scheme in dense_from:
        if nonzero >= math.floor(density * rows * columns + 1e-6):
            return scheme
    by_row = scheme_bits("csr", nonzero, 0, rows, columns)
    return "csr" if by_row <= scheme_bits("csc", nonzero, 0, rows, columns) else "csc"


def _transposed(positions: Integers, rows: int, columns: int) -> Integers:
    """Positions of a matrix with these rows and columns, as positions of its transpose, ascending."""
    row, column = np.divmod(positions, columns)
    return np.sort(column * rows + row)


def _checked(positions: Integers, size: int) -> Integers:
    if positions.size and positions[-1] >= size:
        raise MessageError(f"position {positions[-1]} of {size}")
    if (np.diff(positions) <= 0).any():
        raise MessageError("positions are not ascending and distinct")
    return positions
