"""Features times a smaller factor, with a pruned cache."""

import pytest
import torch
from torch import Tensor

from fedmef.nn.weighting import multiply
from tests.nn.saved import saved_tensors


def graded(input: Tensor, factor: Tensor, sparsity: float | None) -> tuple[Tensor, Tensor, Tensor]:  # noqa: A002
    left, right = input.clone().requires_grad_(), factor.clone().requires_grad_()
    output = left * right if sparsity is None else multiply(left, right, sparsity, None)
    of_input, of_factor = torch.autograd.grad(output.square().sum(), (left, right))
    return output, of_input, of_factor


FACTORS = [(4, 6, 1, 1), (4, 1, 8, 8), (1,), (), (6, 1, 1), (1, 6, 1, 1)]


@pytest.mark.parametrize("shape", FACTORS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_product_and_the_features_gradient_are_exact(shape: tuple[int, ...], channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    features, factor = torch.randn(4, 6, 8, 8).contiguous(memory_format=layout), torch.randn(shape)
    expected, right, _ = graded(features, factor, None)
    output, found, _ = graded(features, factor, 0.9)
    assert torch.equal(output, expected)
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("shape", FACTORS)
def test_the_factors_gradient_uses_the_largest_features(shape: tuple[int, ...]) -> None:
    features, factor = torch.randn(4, 6, 8, 8), torch.randn(shape)
    upstream = torch.randn(4, 6, 8, 8)
    learning = factor.clone().requires_grad_()
    (found,) = torch.autograd.grad(multiply(features, learning, 0.75, None), learning, upstream)
    threshold = features.abs().flatten().topk(features.numel() // 4).values[-1]
    kept = features * (features.abs() >= threshold)
    (expected,) = torch.autograd.grad(kept * learning, learning, upstream)
    torch.testing.assert_close(found, expected)


def test_an_expanded_factor_is_seen_through() -> None:
    features, factor = torch.randn(4, 6, 8, 8, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    with saved_tensors() as seen:
        product = multiply(features, factor.view(4, 6, 1, 1).expand_as(features), 0.9, torch.float16)
    assert sum(tensor.numel() * tensor.element_size() for tensor in seen) < 4 * 6 * 64
    (gradient,) = torch.autograd.grad(product.sum(), factor)
    assert gradient.shape == (4, 6)


@pytest.mark.parametrize("other", [2.0, torch.randn(4, 6, 8, 8, requires_grad=True), torch.randn(6, 1, 1)])
def test_other_products_are_pytorchs(other: Tensor | float) -> None:
    features = torch.randn(4, 6, 8, 8, requires_grad=True)
    product = multiply(features, other, 0.9, None)
    assert product.grad_fn.name() == "MulBackward0"
    assert torch.equal(product, features * other)
