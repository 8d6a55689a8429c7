"""Sparse tensors on the wire: a packed mask becomes a code, its values a vector of the wire's type.

Where the receiver holds an older mask, the code may be a *difference*: which of the old active positions were
dropped, counted among the active ones, and which of the others were grown, counted among the others.
"""

import struct

import numpy as np

from fedmef.errors import MessageError
from fedmef.sparsity.arrays import Array, Bits, Bytes, Integers
from fedmef.sparsity.masks import pack_bits
from fedmef.wire.bits import unpack_checked
from fedmef.wire.floats import from_bfloat16
from fedmef.wire.schemes import (
    HEADER_BYTES,
    Rule,
    choose_scheme,
    decode_positions,
    encode_positions,
    read_header,
)

# First byte of a difference, where other codes have the number of their scheme; and the length of its first
# part, the code of the dropped positions.
_DIFFERENCE = 255
_DIFFERENCE_HEADER = struct.Struct("<BI")
_BFLOAT16_NAN = 0x7FC0


def encode_sparse(
    mask: Bytes, values: Array, rows: int, columns: int, rule: Rule, known: Bytes | None = None
) -> tuple[Bytes, Array]:
    """A packed mask and its values as a code and the values that go with it.

    Args:
        mask: bit-packed, of `rows · columns` positions.
        values: the active elements, in the type that they have on the wire.
        rows: of the tensor as a matrix, for `csr` and `csc`; a convolution has a row for each filter.
        columns: likewise.
        rule: the storage scheme, or how to choose it.
        known: a mask that the receiver holds; the code is a difference to it if that is smaller.
    """
    active = unpack_checked(mask, rows * columns)
    positions = np.flatnonzero(active)
    scheme = choose_scheme(rule, positions.size, 8 * values.itemsize, rows, columns)
    code = encode_positions(positions, rows, columns, scheme)
    sent = values
    if scheme == "dense":  # a pruned element is NaN: an active one may well be zero
        nan = _BFLOAT16_NAN if values.dtype == np.uint16 else np.nan
        sent = np.full(active.size, nan, dtype=values.dtype)
        sent[active] = values
    if known is not None:
        difference = _encode_difference(unpack_checked(known, active.size), active)
        if difference.nbytes + values.nbytes < code.nbytes + sent.nbytes:
            return difference, values
    return code, sent


def decode_sparse(
    code: Array, values: Array, rows: int, columns: int, known: Bytes | None = None
) -> tuple[Bytes, Array]:
    """The inverse of `encode_sparse`: the packed mask, and as many values as it has active positions."""
    content = _content(code)
    if content.size == HEADER_BYTES:  # dense, or no positions at all
        scheme, count = read_header(content, rows * columns)
        if scheme.name == "dense":
            return _decode_dense(values, count, rows * columns)
    active = _decode(content, rows, columns, known)
    if values.shape != (count := int(np.count_nonzero(active)),):
        raise MessageError(f"{values.size} values for {count} active positions")
    return pack_bits(active), values


def encode_mask(mask: Bytes, rows: int, columns: int, rule: Rule) -> Bytes:
    """A packed mask without values."""
    return encode_indices(np.flatnonzero(unpack_checked(mask, rows * columns)), rows, columns, rule)


def decode_mask(code: Array, rows: int, columns: int) -> Bytes:
    """The inverse of `encode_mask`."""
    return pack_bits(_decode(_content(code), rows, columns, None))


def encode_indices(positions: Integers, rows: int, columns: int, rule: Rule) -> Bytes:
    """Ascending positions without values."""
    return encode_positions(positions, rows, columns, choose_scheme(rule, positions.size, 0, rows, columns))


def decode_indices(code: Array, rows: int, columns: int) -> Integers:
    """The inverse of `encode_indices`."""
    return decode_positions(_content(code), rows, columns)


def _decode_dense(values: Array, count: int, size: int) -> tuple[Bytes, Array]:
    if values.shape != (size,):
        raise MessageError(f"{values.size} dense elements instead of {size}")
    active = ~np.isnan(from_bfloat16(values) if values.dtype == np.uint16 else values)
    if int(active.sum()) != count:
        raise MessageError(f"{int(active.sum())} active elements, not as many as the {count} that it claims")
    return pack_bits(active), values[active]


def _decode(code: Bytes, rows: int, columns: int, known: Bytes | None) -> Bits:
    if code.size and code[0] == _DIFFERENCE:
        if known is None:
            raise MessageError("a difference to a mask that is not there")
        return _decode_difference(code, unpack_checked(known, rows * columns))
    active = np.zeros(rows * columns, dtype=np.bool_)
    active[decode_positions(code, rows, columns)] = True
    return active


def _encode_difference(before: Bits, after: Bits) -> Bytes:
    held = np.flatnonzero(before)
    grown = np.flatnonzero(after > before)
    dropped_code = _encode_line(np.flatnonzero(~after[held]), held.size)
    grown_code = _encode_line(grown - np.searchsorted(held, grown), before.size - held.size)
    header = np.frombuffer(_DIFFERENCE_HEADER.pack(_DIFFERENCE, dropped_code.size), dtype=np.uint8)
    return np.concatenate([header, dropped_code, grown_code])


def _decode_difference(code: Bytes, before: Bits) -> Bits:
    if code.size < _DIFFERENCE_HEADER.size:
        raise MessageError("a difference without a header")
    start = _DIFFERENCE_HEADER.size
    end = start + _DIFFERENCE_HEADER.unpack(code[:start].tobytes())[1]
    held = np.flatnonzero(before)
    dropped = decode_positions(code[start:end], 1, held.size)
    grown = decode_positions(code[end:], 1, before.size - held.size)
    after = before.copy()
    after[held[dropped]] = False
    # Before the i-th held position there are held[i] − i others.
    after[grown + np.searchsorted(held - np.arange(held.size), grown, side="right")] = True
    return after


def _encode_line(positions: Integers, size: int) -> Bytes:
    return encode_positions(positions, 1, size, choose_scheme("auto", positions.size, 0, 1, size))


def _content(code: Array) -> Bytes:
    if code.dtype != np.uint8 or code.ndim != 1:
        raise MessageError(f"a code of type {code.dtype} and shape {list(code.shape)}")
    return code
