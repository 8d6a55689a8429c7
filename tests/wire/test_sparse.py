"""Sparse tensors as codes and values, whole or as a difference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.errors import MessageError
from fedmef.sparsity.arrays import Array, Bytes
from fedmef.sparsity.masks import active_positions, mask_from_positions, random_mask
from fedmef.wire.floats import to_bfloat16
from fedmef.wire.schemes import Rule
from fedmef.wire.sparse import (
    decode_indices,
    decode_mask,
    decode_sparse,
    encode_indices,
    encode_mask,
    encode_sparse,
)

RULES: tuple[Rule, ...] = ("auto", "paper", "dense", "bitmap", "coo", "csr", "csc", "rice")
TYPES = ("float32", "float16", "bfloat16", "float64")

Sparse = tuple[Bytes, Array, int, int]


@st.composite
def sparse(draw: st.DrawFn) -> Sparse:
    """A packed mask, values of which some are zero, rows and columns."""
    rows, columns = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    size = rows * columns
    count = draw(st.sampled_from([0, 1, size, draw(st.integers(0, size))]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = generator.standard_normal(count)
    values[::3] = 0.0
    values[1::5] = -0.0
    kind = draw(st.sampled_from(TYPES))
    sent = to_bfloat16(values) if kind == "bfloat16" else values.astype(kind)
    return random_mask(size, count, generator), sent, rows, columns


def same(one: Array, other: Array) -> bool:
    """To the bit: −0 is not 0."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60, deadline=None)
@given(tensor=sparse())
def test_a_sparse_tensor_comes_back_to_the_bit(rule: Rule, tensor: Sparse) -> None:
    mask, values, rows, columns = tensor
    code, sent = encode_sparse(mask, values, rows, columns, rule)
    received, decoded = decode_sparse(code, sent, rows, columns)
    assert same(received, mask)
    assert same(decoded, values)


@settings(max_examples=150, deadline=None)
@given(tensor=sparse(), before=st.floats(0, 1))
def test_a_difference_comes_back_whatever_has_changed(tensor: Sparse, before: float) -> None:
    mask, values, rows, columns = tensor
    size = rows * columns
    known = random_mask(size, int(before * size), np.random.default_rng(size))
    code, sent = encode_sparse(mask, values, rows, columns, "coo", known)
    received, decoded = decode_sparse(code, sent, rows, columns, known)
    assert same(received, mask)
    assert same(decoded, values)


def exchanged(count: int) -> tuple[Bytes, Bytes, Array]:
    """A mask of 1,000 of 10,000 positions, one with `count` of them exchanged, and values."""
    order = np.random.default_rng(0).permutation(10_000)
    before = mask_from_positions(order[:1000], 10_000)
    after = mask_from_positions(order[count : 1000 + count], 10_000)
    return before, after, np.zeros(1000, dtype=np.float32)


def test_a_small_change_is_sent_as_a_difference() -> None:
    before, after, values = exchanged(10)
    whole, _ = encode_sparse(after, values, 100, 100, "auto")
    difference, _ = encode_sparse(after, values, 100, 100, "auto", before)
    assert difference.size < 60
    assert whole.size > 500
    with pytest.raises(MessageError, match="not there"):
        decode_sparse(difference, values, 100, 100)


def test_a_change_of_everything_is_sent_whole() -> None:
    before, after, values = exchanged(1000)
    code, _ = encode_sparse(after, values, 100, 100, "auto", before)
    assert same(decode_sparse(code, values, 100, 100)[0], after)  # needs nothing else


@pytest.mark.parametrize("end", [0, 1, 4, 5, 12, -1])
def test_a_difference_cut_short_is_refused(end: int) -> None:
    before, after, values = exchanged(10)
    difference, _ = encode_sparse(after, values, 100, 100, "auto", before)
    with pytest.raises(MessageError):
        decode_sparse(difference[:end], values, 100, 100, before)


def test_a_difference_to_a_mask_of_another_size_is_refused() -> None:
    before, after, values = exchanged(10)
    difference, _ = encode_sparse(after, values, 100, 100, "auto", before)
    with pytest.raises(MessageError, match="bytes where 10000 bits are expected"):
        decode_sparse(difference, values, 100, 100, before[:-1])


def test_a_mask_and_positions_travel_without_values() -> None:
    mask = mask_from_positions(np.array([2, 3, 77]), 100)
    for rule in RULES:
        assert same(decode_mask(encode_mask(mask, 10, 10, rule), 10, 10), mask)
    positions = active_positions(mask, 100)
    assert same(decode_indices(encode_indices(positions, 10, 10, "auto"), 10, 10), positions)


def test_values_and_mask_must_fit() -> None:
    mask = mask_from_positions(np.array([2, 3, 77]), 100)
    for rule in RULES:
        code, sent = encode_sparse(mask, np.ones(3), 10, 10, rule)
        for wrong in (sent[:-1], np.append(sent, sent[-1:]), sent[None]):
            with pytest.raises(MessageError):
                decode_sparse(code, wrong, 10, 10)
    code, sent = encode_sparse(mask, np.ones(3), 10, 10, "dense")
    sent[0] = 1.0
    with pytest.raises(MessageError, match="not as many"):
        decode_sparse(code, sent, 10, 10)


@pytest.mark.parametrize("code", [np.zeros(5), np.zeros((1, 5), dtype=np.uint8)])
def test_a_code_of_another_type_is_refused(code: Array) -> None:
    for decode in (decode_mask, decode_indices):
        with pytest.raises(MessageError, match="a code of type"):
            decode(code, 10, 10)
    with pytest.raises(MessageError, match="a code of type"):
        decode_sparse(code, np.zeros(0), 10, 10)
