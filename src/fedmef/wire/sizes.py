"""How many bits a sparse tensor takes in each storage scheme, and which scheme to take.

`n` elements, `m` of them active, `b` bits a value, `r` rows and `c` columns. The first five are the paper's
(appendix); `rice` is ours: Golomb-Rice codes of the gaps between active positions, close to the entropy of a
random mask.

| scheme | bits |
|---|---|
| dense | n·b |
| bitmap | n + m·b |
| coo | m·ceil(log2 n) + m·b |
| csr | m·ceil(log2 c) + r·ceil(log2 m) + m·b |
| csc | m·ceil(log2 r) + c·ceil(log2 m) + m·b |
| rice | about m·(1 + k + q/(1 − q)) + m·b, where q = (1 − m/n)^(2^k), at the best k |
"""

import math
from typing import Literal, get_args

Scheme = Literal["dense", "bitmap", "coo", "csr", "csc", "rice"]
Rule = Literal["auto", "paper", "dense", "bitmap", "coo", "csr", "csc", "rice"]

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
MAXIMUM_RICE_BITS = 24  # the largest k: gaps stay far from the end of 64-bit integers


def index_bits(count: int) -> int:
    """`ceil(log2 count)`: what an index below `count` takes; none when there is nothing to choose."""
    return (count - 1).bit_length() if count > 1 else 0


def scheme_bits(scheme: Scheme, size: int, nonzero: int, bits: int, rows: int, columns: int) -> int:
    """The scheme's formula; `bits` is 0 for positions alone.

    Exact for all schemes but `rice`, whose length depends on the mask: there, what a random mask takes.
    """
    if scheme == "dense":
        return size * bits
    match scheme:
        case "bitmap":
            positions = size
        case "coo":
            positions = nonzero * index_bits(size)
        case "csr":
            positions = nonzero * index_bits(columns) + rows * index_bits(nonzero)
        case "csc":
            positions = nonzero * index_bits(rows) + columns * index_bits(nonzero)
        case "rice":
            positions = expected_rice_bits(size, nonzero)
    return positions + nonzero * bits


def choose_scheme(rule: Rule, size: int, nonzero: int, bits: int, rows: int, columns: int) -> Scheme:
    """The scheme that a rule takes: `auto` the smallest, `paper` by density, a scheme's name always that one.

    Positions alone (`bits` 0) are never dense: a bitmap is the densest form that they have.
    """
    if rule == "auto":
        candidates = [scheme for scheme in SCHEMES if bits or scheme != "dense"]
        return min(candidates, key=lambda scheme: scheme_bits(scheme, size, nonzero, bits, rows, columns))
    scheme = _by_density(size, nonzero, rows, columns) if rule == "paper" else rule
    return "bitmap" if scheme == "dense" and not bits else scheme


def _by_density(size: int, nonzero: int, rows: int, columns: int) -> Scheme:
    """The appendix's rule. A layer pruned to 90 % counts as 10 % dense, though its count is rounded down."""
    dense_from: tuple[tuple[float, Scheme], ...] = ((0.9, "dense"), (0.3, "bitmap"), (0.1, "coo"))
    for density, scheme in dense_from:
        if nonzero >= math.floor(density * size + 1e-6):
            return scheme
    by_row = scheme_bits("csr", size, nonzero, 0, rows, columns)
    return "csr" if by_row <= scheme_bits("csc", size, nonzero, 0, rows, columns) else "csc"


def expected_rice_bits(size: int, nonzero: int) -> int:
    """What the positions of a random mask take in Golomb-Rice codes, at the best k."""
    if nonzero == 0:
        return 0
    if nonzero == size:
        return size
    pruned = 1 - nonzero / size
    return min(_expected_bits(nonzero, pruned, low) for low in range(MAXIMUM_RICE_BITS + 1))


def _expected_bits(nonzero: int, pruned: float, low: int) -> int:
    longer = pruned ** (1 << low)  # that a gap goes on for another 2^k positions
    return math.ceil(nonzero * (1 + low + longer / (1 - longer))) if longer < 1 else 1 << 62
