"""Sparse tensors on the wire: a packed mask becomes a code, its values a vector of the wire's type.

Where the receiver holds an older mask, the code may be a *difference*: which of the old active positions were
dropped, counted among the active ones, and which of the others were grown, counted among the others.
"""

import struct

import numpy as np
import torch
from torch import Tensor

from fedmef.wire.bits import Bits, Bytes, Integers, pack, unpack
from fedmef.wire.errors import MessageError
from fedmef.wire.schemes import HEADER_BYTES, decode_positions, encode_positions, read_header
from fedmef.wire.sizes import Rule, choose_scheme

# First byte of a difference, where other codes have the number of their scheme; and the length of its first
# part, the code of the dropped positions.
_DIFFERENCE = 255
_DIFFERENCE_HEADER = struct.Struct("<BI")


def encode_sparse(
    mask: Tensor, values: Tensor, rows: int, columns: int, rule: Rule, known: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A packed mask and its values as a code and the values that go with it.

    Args:
        mask: bit-packed, of `rows · columns` positions.
        values: the active elements, in the type that they have on the wire.
        rows: of the tensor as a matrix, for `csr` and `csc`; a convolution has a row for each filter.
        columns: likewise.
        rule: the storage scheme, or how to choose it.
        known: a mask that the receiver holds; the code is a difference to it if that is smaller.
    """
    active = _active(mask, rows * columns)
    positions = np.flatnonzero(active)
    bits = 8 * values.element_size()
    scheme = choose_scheme(rule, active.size, positions.size, bits, rows, columns)
    code = encode_positions(positions, rows, columns, scheme)
    sent = values
    if scheme == "dense":  # a pruned element is NaN: an active one may well be zero
        sent = torch.full((active.size,), torch.nan, dtype=values.dtype)
        sent[torch.from_numpy(active)] = values
    if known is not None:
        difference = _encode_difference(_active(known, active.size), active)
        if difference.nbytes + values.nbytes < code.nbytes + sent.nbytes:
            return torch.from_numpy(difference), values
    return torch.from_numpy(code), sent


def decode_sparse(
    code: Tensor, values: Tensor, rows: int, columns: int, known: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The inverse of `encode_sparse`: the packed mask, and as many values as it has active positions."""
    content = _content(code)
    if content.size == HEADER_BYTES:  # dense, or no positions at all
        scheme, count = read_header(content, rows * columns)
        if scheme == "dense":
            return _decode_dense(values, count, rows * columns)
    mask = _decode(content, rows, columns, known)
    if values.shape != (count := int(np.count_nonzero(mask)),):
        raise MessageError(f"{values.numel()} values for {count} active positions")
    return torch.from_numpy(pack(mask)), values


def encode_mask(mask: Tensor, rows: int, columns: int, rule: Rule) -> Tensor:
    """A packed mask without values."""
    return encode_indices(
        torch.from_numpy(np.flatnonzero(_active(mask, rows * columns))), rows, columns, rule
    )


def decode_mask(code: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of `encode_mask`."""
    return torch.from_numpy(pack(_decode(_content(code), rows, columns, None)))


def encode_indices(positions: Tensor, rows: int, columns: int, rule: Rule) -> Tensor:
    """Ascending positions without values."""
    scheme = choose_scheme(rule, rows * columns, positions.numel(), 0, rows, columns)
    return torch.from_numpy(encode_positions(positions.numpy(), rows, columns, scheme))


def decode_indices(code: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of `encode_indices`."""
    return torch.from_numpy(decode_positions(_content(code), rows, columns))


def _decode_dense(values: Tensor, count: int, size: int) -> tuple[Tensor, Tensor]:
    if values.shape != (size,):
        raise MessageError(f"{values.numel()} dense elements instead of {size}")
    active = ~values.isnan()
    if int(active.sum()) != count:
        raise MessageError(f"{int(active.sum())} active elements, not as many as the {count} that it claims")
    return torch.from_numpy(pack(active.numpy())), values[active]


def _decode(code: Bytes, rows: int, columns: int, known: Tensor | None) -> Bits:
    if code.size and code[0] == _DIFFERENCE:
        if known is None:
            raise MessageError("a difference to a mask that is not there")
        return _decode_difference(code, _active(known, rows * columns))
    return _ones(decode_positions(code, rows, columns), rows * columns)


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
    return encode_positions(positions, 1, size, choose_scheme("auto", size, positions.size, 0, 1, size))


def _ones(positions: Integers, size: int) -> Bits:
    bits = np.zeros(size, dtype=np.bool_)
    bits[positions] = True
    return bits


def _active(mask: Tensor, size: int) -> Bits:
    return unpack(mask.numpy(), size)


def _content(code: Tensor) -> Bytes:
    if code.dtype != torch.uint8 or code.ndim != 1:
        raise MessageError(f"a code of type {code.dtype} and shape {list(code.shape)}")
    content: Bytes = code.numpy()
    return content
