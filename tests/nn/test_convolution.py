"""The sparse convolution equals autograd of the plain formula, and keeps nothing dense."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmef.nn import CachePolicy, Geometry, SparseConv2d, sparse_conv2d
from fedmef.nn.bits import mask_from_positions
from fedmef.nn.cache import PrunedActivation
from tests.nn.reference import Case, cases, dense_theta, plain_convolution, plain_weight
from tests.nn.saved import saved_tensors

assert_exact = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)


def our_gradients(layer: SparseConv2d, images: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    leaf = images.clone().requires_grad_()
    layer.zero_grad()
    layer(leaf).backward(upstream)
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()} | {"images": leaf.grad}
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}


def plain_gradients(
    layer: SparseConv2d, images: Tensor, kept_images: Tensor, upstream: Tensor
) -> dict[str, Tensor]:
    """By autograd; those of weights and gain use the kept images, as section 2 says."""
    theta = dense_theta(layer)
    gain = None if layer.gain is None else layer.gain.detach().clone().requires_grad_()
    bias = None if layer.bias is None else layer.bias.detach().clone().requires_grad_()
    leaf = images.clone().requires_grad_()
    weight = plain_weight(layer, theta, gain)
    plain_convolution(layer, leaf, weight.detach(), bias).backward(upstream)  # type: ignore[no-untyped-call]
    plain_convolution(layer, kept_images, weight, None).backward(upstream)  # type: ignore[no-untyped-call]
    assert theta.grad is not None
    values = theta.grad.flatten()[layer.active_positions()]
    gradients = {"values": values, "images": leaf.grad}
    gradients |= {} if gain is None else {"gain": gain.grad}
    gradients |= {} if bias is None else {"bias": bias.grad}
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}


def test_a_layer_of_eight_weights_by_hand() -> None:
    geometry = Geometry((2, 4, 1, 1))  # two 1x1 filters of four channels
    mask = mask_from_positions(torch.tensor([1, 3, 4]), 8)
    values = torch.tensor([2.0, -1.0, 3.0], requires_grad=True)
    pixel = torch.tensor([1.0, 10.0, 100.0, 1000.0]).view(1, 4, 1, 1).requires_grad_()
    output = sparse_conv2d(pixel, values, mask, geometry)
    assert output.flatten().tolist() == [2 * 10 - 1000, 3]
    output.backward(torch.tensor([1.0, 2.0]).view(1, 2, 1, 1))  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert pixel.grad is not None
    assert values.grad.tolist() == [10, 1000, 2]
    assert pixel.grad.flatten().tolist() == [3 * 2, 2, 0, -1]


def test_a_pruned_input_changes_the_weights_gradient_only_by_hand() -> None:
    geometry = Geometry((2, 4, 1, 1))
    mask = mask_from_positions(torch.tensor([1, 3, 4]), 8)
    values = torch.tensor([2.0, -1.0, 3.0], requires_grad=True)
    pixel = torch.tensor([1.0, 10.0, 100.0, 1000.0]).view(1, 4, 1, 1).requires_grad_()
    output = sparse_conv2d(pixel, values, mask, geometry, cache=CachePolicy(sparsity=0.5))
    assert output.flatten().tolist() == [2 * 10 - 1000, 3]
    output.backward(torch.tensor([1.0, 2.0]).view(1, 2, 1, 1))  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert pixel.grad is not None
    assert values.grad.tolist() == [0, 1000, 0]  # 1 and 10 were forgotten
    assert pixel.grad.flatten().tolist() == [3 * 2, 2, 0, -1]


@given(case=cases())
@settings(deadline=None, max_examples=150)
def test_output_and_gradients_equal_autograd_of_the_plain_formula(case: Case) -> None:
    layer, images = case.layer, case.images
    weight = plain_weight(layer, dense_theta(layer), layer.gain)
    output = layer(images)
    assert_exact(output, plain_convolution(layer, images, weight, layer.bias))
    upstream = torch.randn(output.shape, dtype=torch.float64)
    expected = plain_gradients(layer, images, images, upstream)
    assert_exact(our_gradients(layer, images, upstream), expected)


@given(case=cases(activation_sparsity=0.6))
@settings(deadline=None, max_examples=100)
def test_a_pruned_cache_leaves_the_inputs_gradient_exact_and_prunes_the_weights(case: Case) -> None:
    layer, images = case.layer, case.images
    order = images.abs().flatten().argsort(descending=True)
    kept_images = torch.zeros_like(images).flatten()
    kept = order[: int(0.4 * images.numel() + 1e-6)]
    kept_images[kept] = images.flatten()[kept]
    upstream = torch.randn(layer(images).shape, dtype=torch.float64)
    expected = plain_gradients(layer, images, kept_images.view_as(images), upstream)
    assert_exact(our_gradients(layer, images, upstream), expected)


@given(case=cases())
@settings(deadline=None, max_examples=15)
def test_gradients_pass_pytorchs_own_check(case: Case) -> None:
    layer = case.layer
    images = case.images.clone().requires_grad_()

    def convolve(images: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        return sparse_conv2d(
            images,
            given["values"],
            layer.mask,
            layer.geometry,
            gain=given.get("gain"),
            bias=given.get("bias"),
        )

    names, parameters = zip(*layer.named_parameters(), strict=True)
    assert torch.autograd.gradcheck(convolve, (images, *parameters), fast_mode=True)


@pytest.mark.parametrize("density", [0.1, 1.0])
@pytest.mark.parametrize("normalize", [False, True])
def test_an_unpruned_cache_is_bit_equal_to_a_plain_convolution(density: float, normalize: bool) -> None:
    layer = SparseConv2d(16, 24, 3, 2, 1, sparsity=1 - density, normalize=normalize)
    images = torch.randn(4, 16, 12, 12)
    leaf = images.clone().requires_grad_()
    weight = layer.dense_weight().requires_grad_()
    bias = torch.zeros(24, requires_grad=True)
    plain = plain_convolution(layer, leaf, weight, bias)
    upstream = torch.randn(plain.shape)
    plain.backward(upstream)  # type: ignore[no-untyped-call]

    ours = our_gradients(layer, images, upstream)
    assert torch.equal(layer(images), plain)
    assert leaf.grad is not None
    assert bias.grad is not None
    assert weight.grad is not None
    assert torch.equal(ours["images"], leaf.grad)
    torch.testing.assert_close(ours["bias"], bias.grad)  # a plain sum, in another order than oneDNN's
    if not normalize:
        assert torch.equal(ours["values"], weight.grad.flatten()[layer.active_positions()])


@pytest.mark.parametrize("normalize", [False, True])
def test_gradients_of_a_full_cache_are_bit_equal_to_those_without_one(normalize: bool) -> None:
    images = torch.rand(4, 8, 6, 6) + 0.1  # rectified and no zeros: even a tiny sparsity forgets nothing
    options = {"sparsity": 0.5, "normalize": normalize, "affine": normalize}
    exact = SparseConv2d(8, 8, 3, **options, activation_sparsity=0.0)  # type: ignore[arg-type]
    cached = SparseConv2d(8, 8, 3, **options, activation_sparsity=1e-12)  # type: ignore[arg-type]
    cached.load_state_dict(exact.state_dict())
    upstream = torch.randn(exact(images).shape)
    expected = our_gradients(exact, images, upstream)
    for name, gradient in our_gradients(cached, images, upstream).items():
        assert torch.equal(gradient, expected[name]), name


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_only_values_mask_statistics_bits_and_kept_values_are_saved(dtype: torch.dtype | None) -> None:
    layer = SparseConv2d(
        8, 16, 3, normalize=True, affine=True, activation_sparsity=0.9, cache_dtype=dtype, sparsity=0.9
    )
    images = torch.randn(2, 8, 10, 10, requires_grad=True)
    with saved_tensors() as seen:
        layer(images)
    assert layer.gain is not None
    values, mask, gain, statistics, bits, kept = seen
    own = [layer.values, layer.mask, layer.gain]
    assert [tensor.data_ptr() for tensor in (values, mask, gain)] == [tensor.data_ptr() for tensor in own]
    assert statistics.shape == (2, 16)
    assert (bits.dtype, bits.shape) == (torch.uint8, (200,))
    assert (kept.dtype, kept.shape) == (dtype or torch.float32, (160,))


def test_an_unpruned_cache_saves_the_input_itself_and_no_dense_weight() -> None:
    layer = SparseConv2d(8, 16, 3, sparsity=0.9, bias=False)
    images = torch.randn(2, 8, 10, 10, requires_grad=True)
    with saved_tensors() as seen:
        layer(images)
    own = [layer.values, layer.mask, images]
    assert [tensor.data_ptr() for tensor in seen] == [tensor.data_ptr() for tensor in own]


def test_frozen_weights_keep_no_input_and_still_pass_the_inputs_gradient_on() -> None:
    layer = SparseConv2d(8, 16, 3, sparsity=0.5, bias=False)
    images = torch.randn(2, 8, 5, 5, requires_grad=True)
    layer(images).square().sum().backward()
    expected, images.grad = images.grad, None
    layer.values.requires_grad_(False)
    with saved_tensors() as seen:
        output = layer(images)
    assert [tensor.data_ptr() for tensor in seen[:2]] == [layer.values.data_ptr(), layer.mask.data_ptr()]
    assert len(seen) == 2
    output.square().sum().backward()
    assert images.grad is not None
    assert expected is not None
    assert torch.equal(images.grad, expected)


def test_a_gain_is_trained_even_when_the_weights_are_frozen() -> None:
    layer = SparseConv2d(8, 16, 3, sparsity=0.5, normalize=True, affine=True)
    images = torch.randn(2, 8, 5, 5)
    upstream = torch.randn(layer(images).shape)
    expected = our_gradients(layer, images, upstream)["gain"]
    layer.values.requires_grad_(False)
    assert torch.equal(our_gradients(layer, images, upstream)["gain"], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_precision_cache_gives_nearly_the_same_gradient(dtype: torch.dtype) -> None:
    images = torch.randn(4, 8, 6, 6)
    full = SparseConv2d(8, 8, 3, sparsity=0.5, activation_sparsity=0.5)
    half = SparseConv2d(8, 8, 3, sparsity=0.5, activation_sparsity=0.5, cache_dtype=dtype)
    half.load_state_dict(full.state_dict())
    upstream = torch.randn(full(images).shape)
    expected, rounded = our_gradients(full, images, upstream), our_gradients(half, images, upstream)
    assert torch.equal(rounded["images"], expected["images"])
    difference = (rounded["values"] - expected["values"]).norm() / expected["values"].norm()
    assert 0 < difference < 2**-8


def test_a_half_precision_cache_never_gives_infinity() -> None:
    layer = SparseConv2d(4, 4, 3, sparsity=0.5, activation_sparsity=0.5, cache_dtype=torch.float16)
    gradients = our_gradients(layer, torch.full((1, 4, 5, 5), 1e6), torch.ones(1, 4, 3, 3))
    assert gradients["values"].isfinite().all()
    assert gradients["values"].abs().max() > 1e4


@given(
    activation_sparsity=st.floats(0.01, 0.99),
    height=st.integers(3, 9),
    batch=st.integers(1, 3),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=50)
def test_a_layers_cache_never_keeps_more_than_its_share(
    activation_sparsity: float, height: int, batch: int, seed: int
) -> None:
    layer = SparseConv2d(4, 4, 3, bias=False, sparsity=0.5, activation_sparsity=activation_sparsity)
    images = torch.randn(batch, 4, height, 5, generator=torch.Generator().manual_seed(seed)).relu()
    with saved_tensors() as seen:
        layer(images)
    kept = seen[-1]
    assert kept.numel() <= images.numel() * (1 - activation_sparsity) + 1e-6
    expected = PrunedActivation.prune(images, activation_sparsity)
    assert torch.equal(kept, expected.values)


def test_without_gradients_nothing_is_saved_and_the_result_is_the_same() -> None:
    layer = SparseConv2d(4, 4, 3, normalize=True, activation_sparsity=0.9)
    images = torch.randn(2, 4, 6, 6)
    with saved_tensors() as seen, torch.no_grad():
        output = layer(images)
    assert seen == []
    assert torch.equal(output, layer(images))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 2, 20])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_stand_ins_without_memory_are_never_read(
    dtype: torch.dtype, batch: int, kernel: int, memory_format: torch.memory_format
) -> None:
    """PyTorch's kernel depends on all of these, and only some of them leave a stand-in alone."""
    for groups, stride, size in ((1, 1, 6), (1, 2, 6), (4, 1, 6), (1, 1, 1), (1, 2, 1)):
        layer = SparseConv2d(
            8, 8, kernel, stride, kernel // 2, groups=groups, bias=False, sparsity=0.5, dtype=dtype
        )
        images = torch.randn(batch, 8, size, size, dtype=dtype)
        if memory_format == torch.channels_last:  # to() would leave one pixel in the default layout
            images = images.as_strided(images.shape, (8 * size * size, 1, 8 * size, 8))
        weight, plain = layer.dense_weight().requires_grad_(), images.clone().requires_grad_()
        images.requires_grad_()
        layer(images).square().sum().backward()
        plain_output = F.conv2d(plain, weight, None, stride, kernel // 2, 1, groups)
        plain_output.square().sum().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        torch.testing.assert_close(images.grad, plain.grad)
        torch.testing.assert_close(
            layer.values.grad, weight.grad.flatten()[layer.active_positions()], rtol=1e-4, atol=1e-4
        )


def test_two_convolutions_of_one_input_keep_it_once_and_of_a_changed_one_twice() -> None:
    first, second = (SparseConv2d(8, 8, 3, bias=False, activation_sparsity=0.9) for _ in range(2))
    features = torch.randn(2, 8, 6, 6, requires_grad=True) * 1
    with saved_tensors() as seen:
        first(features)
        second(features)
        features.add_(1)
        second(features)
    bits = [tensor.data_ptr() for tensor in seen[2::4]]
    assert bits[0] == bits[1] != bits[2]


def test_a_batch_that_is_written_over_unseen_is_kept_anew() -> None:
    layer = SparseConv2d(8, 8, 3, bias=False, activation_sparsity=0.9)
    batch, new = torch.randn(2, 2, 8, 6, 6)
    layer(batch).sum().backward()
    layer.values.grad = None
    batch.data.copy_(new)  # no version counter sees this
    layer(batch).sum().backward()
    twice = layer.values.grad
    layer.values.grad = None
    layer(new).sum().backward()
    assert twice is not None
    torch.testing.assert_close(layer.values.grad, twice)


def test_channels_last_keeps_the_same_of_the_input() -> None:
    layer = SparseConv2d(8, 8, 3, sparsity=0.5, bias=False, normalize=True, activation_sparsity=0.9)
    images = torch.randn(2, 8, 6, 6)
    upstream = torch.randn(layer(images).shape)
    plain = our_gradients(layer, images, upstream)
    last = our_gradients(layer, images.contiguous(memory_format=torch.channels_last), upstream)
    torch.testing.assert_close(last, plain)
