import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmef.sparsity import active_positions, mask_from_positions, random_mask
from fedmef.wire import MessageError, Rule
from fedmef.wire.sparse import (
    decode_indices,
    decode_mask,
    decode_sparse,
    encode_indices,
    encode_mask,
    encode_sparse,
)

RULES: tuple[Rule, ...] = ("auto", "paper", "dense", "bitmap", "coo", "csr", "csc", "rice")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@st.composite
def sparse(draw: st.DrawFn) -> tuple[Tensor, Tensor, int, int]:
    """A packed mask, values of which some are zero, rows and columns."""
    rows, columns = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    size = rows * columns
    count = draw(st.sampled_from([0, 1, size, draw(st.integers(0, size))]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = torch.randn(count, generator=generator, dtype=torch.float64).to(draw(st.sampled_from(DTYPES)))
    values[::3] = 0.0
    values[1::5] = -0.0
    return random_mask(size, count, generator), values, rows, columns


def same(one: Tensor, other: Tensor) -> bool:
    """To the bit: −0 is not 0."""
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60, deadline=None)
@given(tensor=sparse())
def test_a_sparse_tensor_comes_back_to_the_bit(rule: Rule, tensor: tuple[Tensor, Tensor, int, int]) -> None:
    mask, values, rows, columns = tensor
    code, sent = encode_sparse(mask, values, rows, columns, rule)
    received, decoded = decode_sparse(code, sent, rows, columns)
    assert torch.equal(received, mask)
    assert same(decoded, values)


@settings(max_examples=150, deadline=None)
@given(tensor=sparse(), before=st.floats(0, 1))
def test_a_difference_comes_back_whatever_has_changed(
    tensor: tuple[Tensor, Tensor, int, int], before: float
) -> None:
    mask, values, rows, columns = tensor
    size = rows * columns
    known = random_mask(size, int(before * size), torch.Generator().manual_seed(size))
    code, sent = encode_sparse(mask, values, rows, columns, "coo", known)
    received, decoded = decode_sparse(code, sent, rows, columns, known)
    assert torch.equal(received, mask)
    assert same(decoded, values)


def exchanged(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """A mask of 1,000 of 10,000 positions, one with `count` of them exchanged, and values."""
    order = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))
    before = mask_from_positions(order[:1000], 10_000)
    return before, mask_from_positions(order[count : 1000 + count], 10_000), torch.zeros(1000)


def test_a_small_change_is_sent_as_a_difference() -> None:
    before, after, values = exchanged(10)
    whole, _ = encode_sparse(after, values, 100, 100, "auto")
    difference, _ = encode_sparse(after, values, 100, 100, "auto", before)
    assert difference.numel() < 60
    assert whole.numel() > 500
    with pytest.raises(MessageError, match="not there"):
        decode_sparse(difference, values, 100, 100)


def test_a_change_of_everything_is_sent_whole() -> None:
    before, after, values = exchanged(1000)
    code, _ = encode_sparse(after, values, 100, 100, "auto", before)
    assert torch.equal(decode_sparse(code, values, 100, 100)[0], after)  # needs nothing else


def test_a_mask_and_positions_travel_without_values() -> None:
    mask = mask_from_positions(torch.tensor([2, 3, 77]), 100)
    for rule in RULES:
        assert torch.equal(decode_mask(encode_mask(mask, 10, 10, rule), 10, 10), mask)
    positions = active_positions(mask, 100)
    assert torch.equal(decode_indices(encode_indices(positions, 10, 10, "auto"), 10, 10), positions)


def test_values_and_mask_must_fit() -> None:
    mask = mask_from_positions(torch.tensor([2, 3, 77]), 100)
    for rule in RULES:
        code, sent = encode_sparse(mask, torch.ones(3), 10, 10, rule)
        for wrong in (sent[:-1], torch.cat([sent, sent[-1:]]), sent.unsqueeze(0)):
            with pytest.raises(MessageError):
                decode_sparse(code, wrong, 10, 10)
    code, sent = encode_sparse(mask, torch.ones(3), 10, 10, "dense")
    sent[0] = 1.0
    with pytest.raises(MessageError, match="not as many"):
        decode_sparse(code, sent, 10, 10)


@pytest.mark.parametrize("code", [torch.zeros(5), torch.zeros(1, 5, dtype=torch.uint8)])
def test_a_code_of_another_type_is_refused(code: Tensor) -> None:
    with pytest.raises(MessageError, match="a code of type"):
        decode_mask(code, 10, 10)
