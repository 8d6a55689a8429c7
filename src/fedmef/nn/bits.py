"""Bit-packed masks as tensors: the twin of `fedmef.sparsity.masks`, for a GPU and for autograd."""

from functools import cache

import torch
from torch import Tensor

from fedmef.nn.elements import positions_of

# Eight 0/1 bytes read as one little-endian integer, times this, have their bits side by side in the top byte.
_GATHER_BITS = 0x0102040810204080


def pack_bits(bits: Tensor) -> Tensor:
    """Boolean tensor of any shape → uint8 vector of ceil(n / 8) bytes; the last byte is padded with 0."""
    flat = bits.reshape(-1).contiguous()
    if not flat.numel():  # one of NumPy's has a stride of 0, and no view as integers
        return flat.to(torch.uint8)
    if remainder := flat.numel() % 8:
        flat = torch.cat([flat, flat.new_zeros(8 - remainder)])
    if flat.storage_offset() % 8:
        flat = flat.clone()
    return (flat.view(torch.int64) * _GATHER_BITS).bitwise_right_shift_(56).to(torch.uint8)


def unpack_bits(packed: Tensor, size: int) -> Tensor:
    """The inverse of `pack_bits`: the first `size` bits as a boolean vector."""
    return _byte_table(packed.device).index_select(0, packed.int()).view(torch.bool)[:size]


def unpack_factors(packed: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """The bits as a new vector of zeros and ones, to multiply in place: a boolean one would be converted."""
    return _factor_table(packed.device, dtype).index_select(0, packed.int()).view(-1)[:size]


def active_positions(packed: Tensor, size: int) -> Tensor:
    """The positions of the ones, ascending, as int64."""
    return positions_of(unpack_bits(packed, size))


def count_bits(packed: Tensor) -> int:
    """How many ones a packed mask has."""
    return int(torch.count_nonzero(unpack_bits(packed, 8 * packed.numel())))


def mask_from_positions(positions: Tensor, size: int) -> Tensor:
    """The packed mask that has ones exactly at these positions."""
    bits = torch.zeros(size, dtype=torch.bool, device=positions.device)
    return pack_bits(bits.index_fill_(0, positions, True))


@cache
def _byte_table(device: torch.device) -> Tensor:
    return _bits_of_bytes().to(torch.uint8).view(torch.int64).squeeze(1).to(device)


@cache
def _factor_table(device: torch.device, dtype: torch.dtype) -> Tensor:
    return _bits_of_bytes().to(device, dtype)


def _bits_of_bytes() -> Tensor:
    return (torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1  # [256, 8]
