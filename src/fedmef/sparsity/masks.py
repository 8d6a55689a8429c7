"""Bit-packed masks: one bit a position, eight positions a byte, lowest bit first."""

import math
from functools import cache

import torch
from torch import Tensor

from fedmef.errors import UserError
from fedmef.sparsity.elements import positions_of
from fedmef.sparsity.topk import largest_magnitudes

# Eight 0/1 bytes read as one little-endian integer, times this, have their bits side by side in the top byte.
_GATHER_BITS = 0x0102040810204080


def active_count(size: int, sparsity: float) -> int:
    """How many of `size` elements stay at this sparsity: never more than the share `1 − sparsity`."""
    if not 0 <= sparsity < 1:
        raise UserError(f"sparsity = {sparsity}: must be at least 0 and below 1, for example 0.9")
    return math.floor(size * (1 - sparsity) + 1e-6)  # 10 · (1 − 0.9) is 0.9999999999999998 in floating point


def pack_bits(bits: Tensor) -> Tensor:
    """Boolean tensor of any shape → uint8 vector of ceil(n / 8) bytes; the last byte is padded with 0."""
    flat = bits.reshape(-1).contiguous()
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


def random_mask(size: int, count: int, generator: torch.Generator) -> Tensor:
    """A packed mask of exactly `count` ones, every choice equally likely."""
    # The same permutation in 32 bits: of a large layer this is the most that building a network takes.
    kind = torch.int32 if size < 2**31 else torch.int64
    return mask_from_positions(torch.randperm(size, generator=generator, dtype=kind)[:count].long(), size)


def magnitude_mask(weight: Tensor, count: int) -> Tensor:
    """A packed mask of the `count` weights of largest magnitude."""
    flat = weight.detach().reshape(-1)
    positions = largest_magnitudes(flat, count)
    if positions.numel() < count:  # weights that are exactly zero are as good as any other to fill up with
        bits = torch.zeros_like(flat, dtype=torch.bool).index_fill_(0, positions, True)
        rest = (~bits).nonzero().squeeze(1)[: count - positions.numel()]
        positions = torch.cat([positions, rest])
    return mask_from_positions(positions, flat.numel())


@cache
def _byte_table(device: torch.device) -> Tensor:
    return _bits_of_bytes().to(torch.uint8).view(torch.int64).squeeze(1).to(device)


@cache
def _factor_table(device: torch.device, dtype: torch.dtype) -> Tensor:
    return _bits_of_bytes().to(device, dtype)


def _bits_of_bytes() -> Tensor:
    return (torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1  # [256, 8]
