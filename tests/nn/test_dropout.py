"""Dropout with one bit an element."""

import pytest
import torch
import torch.nn.functional as F

from fedmef.nn.dropout import Dropout, dropout
from tests.nn.saved import saved_tensors


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_draws_values_and_gradients_are_pytorchs(p: float) -> None:
    results = []
    for call in (F.dropout, dropout):
        images = torch.randn(3, 5, 7, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
        torch.manual_seed(1)
        output = call(images, p)
        (gradient,) = torch.autograd.grad(output.square().sum(), images)
        results.append((output, gradient, torch.get_rng_state()))
    assert all(torch.equal(theirs, ours) for theirs, ours in zip(*results, strict=True))


def test_one_bit_an_element_is_kept() -> None:
    with saved_tensors() as seen:
        Dropout(0.3)(torch.randn(2, 40, requires_grad=True))
    assert [(tensor.dtype, tensor.shape) for tensor in seen] == [(torch.uint8, (10,))]


def test_what_is_not_trained_is_left_as_it_is() -> None:
    values = torch.randn(4, requires_grad=True)
    assert torch.equal(Dropout(0.5).eval()(values), values)
    assert torch.equal(dropout(values, 0.0), values)
    assert torch.equal(dropout(values, 1.0), torch.zeros(4))
