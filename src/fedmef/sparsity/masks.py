"""Bit-packed masks: one bit a position, eight positions a byte, lowest bit first."""

import math

import numpy as np

from fedmef.errors import UserError
from fedmef.sparsity.arrays import Array, Bits, Bytes, Integers
from fedmef.sparsity.topk import largest_magnitudes


def active_count(size: int, sparsity: float) -> int:
    """How many of `size` elements stay at this sparsity: never more than the share `1 − sparsity`."""
    if not 0 <= sparsity < 1:
        raise UserError(f"sparsity = {sparsity}: must be at least 0 and below 1, for example 0.9")
    return math.floor(size * (1 - sparsity) + 1e-6)  # 10 · (1 − 0.9) is 0.9999999999999998 in floating point


def packed_size(size: int) -> int:
    """The bytes that hold this many bits."""
    return -(-size // 8)


def pack_bits(bits: Array) -> Bytes:
    """Booleans of any shape → `ceil(n / 8)` bytes; the last one is padded with 0."""
    return np.packbits(bits, bitorder="little")


def unpack_bits(packed: Bytes, size: int) -> Bits:
    """The inverse of `pack_bits`: the first `size` bits."""
    return np.unpackbits(packed, count=size, bitorder="little").view(np.bool_)


def active_positions(packed: Bytes, size: int) -> Integers:
    """The positions of the ones, ascending."""
    return np.flatnonzero(unpack_bits(packed, size))


def count_bits(packed: Bytes) -> int:
    """How many ones a packed mask has."""
    return int(np.count_nonzero(np.unpackbits(packed)))


def mask_from_positions(positions: Integers, size: int) -> Bytes:
    """The packed mask that has ones exactly at these positions."""
    bits = np.zeros(size, dtype=np.bool_)
    bits[positions] = True
    return pack_bits(bits)


def random_mask(size: int, count: int, generator: np.random.Generator) -> Bytes:
    """A packed mask of exactly `count` ones, every choice equally likely."""
    return mask_from_positions(generator.choice(size, count, replace=False, shuffle=False), size)


def enliven(packed: Bytes, shape: tuple[int, int], generator: np.random.Generator) -> Bytes:
    """A mask of as many ones in which as few filters as possible have fewer than two.

    NSConv needs two weights in a filter: with fewer its output is 0. Weights move to filters that lack them
    from those that have more, at random. A mask without such filters stays as it is.

    Args:
        packed: the mask.
        shape: filters and weights of a filter.
    """
    filters, filter_size = shape
    bits = unpack_bits(packed, filters * filter_size).reshape(shape).copy()
    lengths, least = bits.sum(1), min(2, filter_size)
    living = min(filters, int(lengths.sum()) // least)
    if lengths.min() >= least or not living:
        return packed
    order = generator.permutation(filters)
    chosen = order[np.argsort(-lengths[order], kind="stable")][:living]
    wanted = np.zeros(filters, dtype=np.int64)
    wanted[chosen] = np.maximum(lengths[chosen], least)
    surplus = int(wanted.sum() - lengths.sum())
    room = np.maximum(wanted - least, 0) if surplus > 0 else filter_size - wanted
    moved = generator.choice(np.repeat(np.arange(filters), room), abs(surplus), replace=False)
    np.subtract.at(wanted, moved, np.sign(surplus))
    for row in np.flatnonzero(wanted != lengths):
        more = wanted[row] > lengths[row]
        changing = np.flatnonzero(bits[row] != more)
        bits[row, generator.choice(changing, abs(wanted[row] - lengths[row]), replace=False)] = more
    return pack_bits(bits)


def magnitude_mask(weight: Array, count: int) -> Bytes:
    """A packed mask of the `count` weights of largest magnitude."""
    flat = weight.reshape(-1)
    positions = largest_magnitudes(flat, count)
    if positions.size < count:  # weights that are exactly zero are as good as any other to fill up with
        zeros = np.setdiff1d(np.arange(flat.size), positions, assume_unique=True)
        positions = np.concatenate([positions, zeros[: count - positions.size]])
    return mask_from_positions(positions, flat.size)
