"""Pooling that keeps a byte an output, or nothing."""

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedmef.nn import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from tests.nn.saved import saved_tensors

sizes = st.tuples(st.integers(1, 3), st.integers(1, 3))


def forward_and_gradient(layer: nn.Module, images: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    leaf = images.clone().requires_grad_()
    output = layer(leaf)
    # whole numbers, so that no order of summation can differ
    upstream = torch.randint(-9, 10, output.shape, generator=torch.Generator().manual_seed(seed)).to(output)
    output.backward(upstream)
    assert leaf.grad is not None
    return output.detach(), leaf.grad


def assert_same(ours: nn.Module, theirs: nn.Module, images: Tensor, seed: int = 0) -> None:
    for mine, plain in zip(
        forward_and_gradient(ours, images, seed), forward_and_gradient(theirs, images, seed), strict=True
    ):
        torch.testing.assert_close(mine, plain, rtol=0, atol=0)


def test_the_maximum_of_two_by_two_by_hand() -> None:
    image = torch.tensor([[1.0, 2.0, 0.0, 9.0], [4.0, 3.0, 0.0, 0.0]]).view(1, 1, 2, 4).requires_grad_()
    output = MaxPool2d(2)(image)
    assert output.flatten().tolist() == [4, 9]
    output.backward(torch.tensor([5.0, 7.0]).view(1, 1, 1, 2))
    assert image.grad is not None
    assert image.grad.flatten().tolist() == [0, 0, 0, 7, 5, 0, 0, 0]


def test_the_average_of_two_by_two_by_hand() -> None:
    image = torch.tensor([[1.0, 2.0, 0.0, 9.0], [4.0, 3.0, 0.0, 0.0]]).view(1, 1, 2, 4).requires_grad_()
    output = AvgPool2d(2)(image)
    assert output.flatten().tolist() == [2.5, 2.25]
    output.backward(torch.tensor([4.0, 8.0]).view(1, 1, 1, 2))
    assert image.grad is not None
    assert image.grad.flatten().tolist() == [1, 1, 2, 2, 1, 1, 2, 2]


def test_a_maximum_that_two_windows_share_gets_both_gradients() -> None:
    image = torch.tensor([0.0, 0.0, 8.0, 0.0, 0.0]).view(1, 1, 1, 5).requires_grad_()
    MaxPool2d((1, 3), stride=1)(image).sum().backward()
    assert image.grad is not None
    assert image.grad.flatten().tolist() == [0, 0, 3, 0, 0]


@given(
    kernel=sizes,
    stride=st.one_of(st.none(), sizes),
    dilation=sizes,
    ceil_mode=st.booleans(),
    height=st.integers(5, 9),
    width=st.integers(5, 9),
    levels=st.sampled_from([2, 1000]),
    seed=st.integers(0, 99),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_max_pooling_equals_pytorchs(
    kernel: tuple[int, int],
    stride: tuple[int, int] | None,
    dilation: tuple[int, int],
    ceil_mode: bool,
    height: int,
    width: int,
    levels: int,
    seed: int,
    data: st.DataObject,
) -> None:
    padding = data.draw(st.tuples(st.integers(0, kernel[0] // 2), st.integers(0, kernel[1] // 2)))
    assume(dilation[0] * (kernel[0] - 1) < height + padding[0])
    assume(dilation[1] * (kernel[1] - 1) < width + padding[1])
    options: dict[str, Any] = {"padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    # with two levels nearly every window has ties
    images = torch.randint(-levels, 0, (2, 3, height, width), generator=torch.Generator().manual_seed(seed))
    ours, theirs = MaxPool2d(kernel, stride, **options), nn.MaxPool2d(kernel, stride, **options)
    assert_same(ours, theirs, images.float(), seed)


@given(
    kernel=sizes,
    stride=st.one_of(st.none(), sizes),
    ceil_mode=st.booleans(),
    count_include_pad=st.booleans(),
    divisor=st.one_of(st.none(), st.integers(1, 5)),
    height=st.integers(3, 9),
    width=st.integers(3, 9),
    seed=st.integers(0, 99),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_average_pooling_equals_pytorchs(
    kernel: tuple[int, int],
    stride: tuple[int, int] | None,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
    height: int,
    width: int,
    seed: int,
    data: st.DataObject,
) -> None:
    padding = data.draw(st.tuples(st.integers(0, kernel[0] // 2), st.integers(0, kernel[1] // 2)))
    arguments: tuple[Any, ...] = (kernel, stride, padding, ceil_mode, count_include_pad, divisor)
    images = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(seed))
    assert_same(AvgPool2d(*arguments), nn.AvgPool2d(*arguments), images, seed)


@pytest.mark.parametrize("size", [1, 2, 3, 7, (2, 5), (None, 3), (1, 1), (9, 9)])
def test_adaptive_average_pooling_equals_pytorchs(size: Any) -> None:
    images = torch.randn(2, 3, 7, 8)
    assert_same(AdaptiveAvgPool2d(size), nn.AdaptiveAvgPool2d(size), images)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_pooling_of_an_imagenet_stem_equals_pytorchs(layout: torch.memory_format) -> None:
    images = torch.randn(2, 4, 16, 16).contiguous(memory_format=layout)
    assert_same(MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 2, 1), images)


@given(
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 7)),
    dilation=sizes,
    stride=sizes,
    ceil_mode=st.booleans(),
    channels_last=st.booleans(),
    levels=st.sampled_from([2, 1000]),
    seed=st.integers(0, 99),
    data=st.data(),
)
@settings(deadline=None, max_examples=200)
def test_windows_wider_than_the_plane_equal_pytorchs(
    kernel: tuple[int, int],
    dilation: tuple[int, int],
    stride: tuple[int, int],
    ceil_mode: bool,
    channels_last: bool,
    levels: int,
    seed: int,
    data: st.DataObject,
) -> None:
    """Several elements of such a window may be one place of a flattened plane; all but one are padding."""
    padding = data.draw(st.tuples(st.integers(0, kernel[0] // 2), st.integers(0, kernel[1] // 2)))
    smallest = [max(1, d * (k - 1) + 1 - 2 * p) for d, k, p in zip(dilation, kernel, padding, strict=True)]
    height, width = (data.draw(st.integers(least, max(least, 4))) for least in smallest)
    options: dict[str, Any] = {"padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    images = torch.randint(-levels, 0, (2, 3, height, width), generator=torch.Generator().manual_seed(seed))
    images = images.float()
    if channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    ours, theirs = MaxPool2d(kernel, stride, **options), nn.MaxPool2d(kernel, stride, **options)
    assume(theirs(images).isfinite().all())  # a window that only sees padding has no maximum
    assert_same(ours, theirs, images, seed)


def test_a_gradient_of_any_memory_layout_is_taken() -> None:
    images = torch.randn(2, 3, 8, 8)
    upstream = torch.randint(-9, 10, (2, 4, 4, 3)).float().permute(0, 3, 1, 2)
    gradients = []
    for layer in (MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 2, 1)):
        leaf = images.clone().requires_grad_()
        gradients.append(torch.autograd.grad(layer(leaf), leaf, upstream)[0])
    assert torch.equal(*gradients)


def test_without_gradients_max_pooling_keeps_nothing() -> None:
    with saved_tensors() as seen, torch.no_grad():
        MaxPool2d(2)(torch.randn(2, 3, 8, 8, requires_grad=True))
    assert seen == []


def test_windows_that_are_nothing_but_minus_infinity_equal_pytorchs() -> None:
    images = torch.full((1, 2, 6, 6), -torch.inf)
    assert_same(MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 2, 1), images)


def test_a_window_too_large_for_a_byte_is_left_to_pytorch() -> None:
    images = torch.randn(1, 2, 34, 34)
    assert_same(MaxPool2d(17), nn.MaxPool2d(17), images)


@pytest.mark.parametrize("layer", [MaxPool2d(2), AvgPool2d(2), AdaptiveAvgPool2d(2)])
def test_an_image_without_a_batch_is_pooled_too(layer: nn.Module) -> None:
    image = torch.randn(3, 6, 6)
    (output, grad), (batched, batched_grad) = (
        forward_and_gradient(layer, image),
        forward_and_gradient(layer, image.unsqueeze(0)),
    )
    assert torch.equal(output, batched.squeeze(0))
    assert torch.equal(grad, batched_grad.squeeze(0))


def test_max_pooling_keeps_one_byte_an_output() -> None:
    images = torch.randn(2, 3, 8, 8, requires_grad=True)
    with saved_tensors() as seen:
        MaxPool2d(2)(images)
    assert [(tensor.dtype, tensor.shape) for tensor in seen] == [(torch.uint8, (2, 3, 4, 4))]


@pytest.mark.parametrize("layer", [AvgPool2d(2), AdaptiveAvgPool2d(2), AdaptiveAvgPool2d(1)])
def test_average_pooling_keeps_nothing(layer: nn.Module) -> None:
    images = torch.randn(2, 3, 8, 8, requires_grad=True)
    with saved_tensors() as seen:
        layer(images)
    assert seen == []
