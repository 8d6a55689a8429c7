"""Sparse layers as modules: what is trained, saved and loaded is the sparse model itself."""

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.errors import FedmefError, UserError
from fedmef.nn import CachePolicy, FilterNormalization, Geometry, SparseConv2d, SparseLinear, sparse_layers
from fedmef.nn.bits import active_positions, mask_from_positions
from fedmef.sparsity.masks import magnitude_mask, random_mask

NORMALISED: dict[str, Any] = {"normalize": True, "affine": True, "activation_sparsity": 0.5}


def some_mask(size: int, count: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(random_mask(size, count, np.random.default_rng(seed)))


def test_parameters_gradients_and_mask_have_the_size_of_what_is_active() -> None:
    layer = SparseConv2d(16, 32, 3, sparsity=0.9, bias=False)
    size = 32 * 16 * 9
    layer(torch.randn(1, 16, 4, 4)).sum().backward()
    assert layer.active_count == 460 == int(size * 0.1)
    assert {name: parameter.shape for name, parameter in layer.named_parameters()} == {"values": (460,)}
    assert layer.values.grad is not None
    assert layer.values.grad.shape == (460,)
    assert (layer.mask.dtype, layer.mask.numel()) == (torch.uint8, size // 8)
    assert layer.density == 460 / size
    assert layer.active_positions().numel() == 460


def test_weights_of_a_dense_convolution_are_kept_at_the_ones_of_the_mask() -> None:
    conv = nn.Conv2d(2, 4, 3, stride=2, padding=1)
    layer = SparseConv2d.from_conv2d(conv, some_mask(72, 20))
    positions = active_positions(some_mask(72, 20), 72)
    pruned = torch.zeros(72)
    pruned[positions] = conv.weight.detach().flatten()[positions]
    assert torch.equal(layer.dense_weight(), pruned.view(4, 2, 3, 3))
    images = torch.randn(2, 2, 7, 7)
    assert torch.equal(layer(images), F.conv2d(images, pruned.view(4, 2, 3, 3), conv.bias, 2, 1))


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": (1, 3), "padding": "same", "dilation": (1, 2)},
        {"kernel_size": 3, "padding": "valid", "stride": (2, 1)},
        {"kernel_size": 3, "padding": (2, 0), "groups": 2, "bias": False},
    ],
)
def test_a_full_mask_computes_what_the_dense_convolution_does(options: dict[str, Any]) -> None:
    conv = nn.Conv2d(4, 6, **options)
    layer = SparseConv2d.from_conv2d(conv, some_mask(conv.weight.numel(), conv.weight.numel()))
    images = torch.randn(2, 4, 9, 8)
    assert torch.equal(layer(images), conv(images))


@pytest.mark.parametrize("shape", [(5, 6), (2, 3, 6), (6,)])
def test_a_full_linear_layer_computes_what_the_dense_one_does(shape: tuple[int, ...]) -> None:
    linear = nn.Linear(6, 4)
    layer = SparseLinear.from_linear(linear, some_mask(24, 24))
    inputs = torch.randn(shape)
    torch.testing.assert_close(layer(inputs), linear(inputs))


def test_a_sparse_linear_layer_has_a_linear_layers_gradient() -> None:
    linear = nn.Linear(6, 4)
    mask = torch.from_numpy(magnitude_mask(linear.weight.detach().numpy(), 8))
    layer = SparseLinear.from_linear(linear, mask)
    positions = active_positions(mask, 24)
    with torch.no_grad():
        linear.weight.copy_(layer.dense_weight().view(4, 6))
    inputs = torch.randn(5, 6)
    layer(inputs).square().sum().backward()
    linear(inputs).square().sum().backward()
    assert layer.values.grad is not None
    assert linear.weight.grad is not None
    torch.testing.assert_close(layer.values.grad, linear.weight.grad.flatten()[positions])


@pytest.mark.parametrize("options", [{}, NORMALISED])
def test_a_state_dict_makes_another_layer_the_same(options: dict[str, Any]) -> None:
    first, second = (
        SparseConv2d(4, 8, 3, generator=np.random.default_rng(seed), **options) for seed in (1, 2)
    )
    images = torch.randn(2, 4, 6, 6)
    assert not torch.equal(first(images), second(images))
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(first(images), second(images))
    expected = {"values", "mask", "bias"} | ({"gain"} if options else set())
    assert first.state_dict().keys() == expected


def test_a_mask_that_does_not_fit_the_values_is_refused() -> None:
    layer = nn.Sequential(SparseConv2d(4, 8, 3, sparsity=0.5))
    state = layer.state_dict()
    state["0.mask"] = some_mask(288, 143)
    with pytest.raises(UserError, match=r"0\.mask has 143 active positions but 0\.values has 144"):
        layer.load_state_dict(state)


def test_a_mask_alone_must_fit_the_values_that_are_there() -> None:
    layer = SparseConv2d(4, 8, 3, sparsity=0.5)
    with pytest.raises(UserError, match="do not belong together"):
        layer.load_state_dict({"mask": some_mask(288, 100)}, strict=False)
    layer.load_state_dict({"mask": some_mask(288, 144, seed=5)}, strict=False)
    assert torch.equal(layer.mask, some_mask(288, 144, seed=5))


def test_ones_in_the_padding_of_a_mask_are_refused() -> None:
    layer = SparseConv2d(1, 1, 3, sparsity=0.5)  # 9 weights, 16 bits
    state = layer.state_dict()
    state["mask"] = torch.tensor([0b1111, 0b10], dtype=torch.uint8)  # four, and one at position 9
    with pytest.raises(UserError, match="do not belong together"):
        layer.load_state_dict(state)


def test_other_counts_do_not_load_into_a_layer() -> None:
    sparser, denser = SparseConv2d(4, 8, 3, sparsity=0.9), SparseConv2d(4, 8, 3, sparsity=0.5)
    with pytest.raises(RuntimeError, match="size mismatch for values"):
        sparser.load_state_dict(denser.state_dict())


def test_a_deep_copy_is_equal_and_independent() -> None:
    layer = SparseConv2d(4, 8, 3, **NORMALISED)
    twin = copy.deepcopy(layer)
    images = torch.randn(2, 4, 6, 6)
    before = layer(images)
    assert torch.equal(twin(images), before)
    twin.assign(torch.arange(10), torch.randn(10))
    assert torch.equal(layer(images), before)
    assert not torch.equal(twin(images), before)


def test_training_and_evaluation_are_the_same() -> None:
    layer = SparseConv2d(4, 8, 3, **NORMALISED)
    images = torch.randn(3, 4, 6, 6)
    assert torch.equal(layer.train()(images), layer.eval()(images))


def test_no_image_depends_on_the_others_in_its_batch() -> None:
    layer = SparseConv2d(4, 8, 3, **NORMALISED)
    images = torch.randn(3, 4, 6, 6)
    alone = torch.cat([layer(image.unsqueeze(0)) for image in images])
    torch.testing.assert_close(alone, layer(images))


def test_a_batch_of_one_trains() -> None:
    layer = SparseConv2d(4, 8, 1, sparsity=0.25, **NORMALISED)
    layer(torch.randn(1, 4, 1, 1)).square().sum().backward()
    assert layer.values.grad is not None
    assert layer.values.grad.any()


def test_assigning_exchanges_positions_and_values() -> None:
    layer = SparseConv2d(1, 2, 2, sparsity=0.5, bias=False)  # 8 weights
    parameter = layer.values
    layer.assign(torch.tensor([0, 2, 5, 7]), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert layer.dense_weight().flatten().tolist() == [1, 0, 2, 0, 0, 3, 0, 4]
    assert layer.values is parameter  # an optimiser that holds it goes on
    layer.assign(torch.tensor([6]), torch.tensor([9.0]))
    assert layer.dense_weight().flatten().tolist() == [0, 0, 0, 0, 0, 0, 9, 0]
    assert layer.active_count == 1


@pytest.mark.parametrize("positions", [[3, 3], [5, 3]])
def test_positions_that_are_not_ascending_and_distinct_are_refused(positions: list[int]) -> None:
    layer = SparseConv2d(1, 2, 2, sparsity=0.5)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(FedmefError, match="not ascending and distinct"):
        layer.assign(torch.tensor(positions), torch.ones(2))
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


def test_as_many_positions_as_values_are_needed() -> None:
    with pytest.raises(UserError, match="2 positions but 3 values"):
        SparseConv2d(1, 2, 2).assign(torch.tensor([0, 1]), torch.ones(3))


@pytest.mark.parametrize("kind", [SparseConv2d, SparseLinear])
def test_an_empty_layer_waits_for_its_weights(kind: type[SparseConv2d]) -> None:
    state = torch.get_rng_state()
    layer = kind.empty(Geometry((3, 4, 1, 1)), CachePolicy(), gain=False, bias=True)
    assert type(layer) is kind
    assert (layer.active_count, layer.density) == (0, 0)
    assert {name: tensor.shape for name, tensor in layer.state_dict().items()} == {
        "values": (0,),
        "mask": (2,),
        "bias": (3,),
    }
    assert not layer.mask.any()
    layer.assign(torch.tensor([1, 6]), torch.tensor([2.0, -1.0]))
    pixel = torch.tensor([1.0, 10.0, 100.0, 1000.0])
    output = layer(pixel if kind is SparseLinear else pixel.view(4, 1, 1))
    assert output.flatten().tolist() == [20, -100, 0]
    assert torch.equal(torch.get_rng_state(), state)


def test_an_empty_layer_is_what_it_is_told_to_be() -> None:
    geometry = Geometry((4, 1, 3, 3), (2, 1), (1, 0), (1, 2), 4, FilterNormalization(0.5))
    cache = CachePolicy(0.5, torch.float16)
    layer = SparseConv2d.empty(geometry, cache, gain=True, bias=False, dtype=torch.float64)
    assert layer.geometry is geometry
    assert layer.cache is cache
    assert layer.bias is None
    assert layer.gain is not None
    assert layer.gain.tolist() == [1.0] * 4
    assert layer.values.dtype == layer.gain.dtype == torch.float64
    assert layer.values.requires_grad
    # Nothing active: zeros come out, and nothing breaks.
    images = torch.randn(2, 4, 7, 7, dtype=torch.float64, requires_grad=True)
    output = layer(images)
    output.sum().backward()
    assert not output.any()
    assert images.grad is not None
    assert not images.grad.any()


def test_only_the_generator_decides_how_a_layer_starts() -> None:
    state = torch.get_rng_state()
    first, same, other = (SparseConv2d(4, 8, 3, generator=np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.mask, same.mask)
    assert torch.equal(first.values, same.values)
    assert not torch.equal(first.mask, other.mask)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation_sparsity": 1.0}, "activation_sparsity = 1.0"),
        ({"activation_sparsity": -0.1}, "activation_sparsity = -0.1"),
        ({"sparsity": 1.0}, "sparsity = 1.0"),
        ({"groups": 3}, "groups = 3"),
        ({"affine": True}, "set normalize=True"),
        ({"normalize": True, "scaling": "other"}, "scaling = 'other'"),
    ],
)
def test_impossible_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SparseConv2d(4, 8, 3, **options)


def test_sparse_layers_are_found_by_name() -> None:
    convolution, linear = SparseConv2d(1, 2, 3), SparseLinear(2, 3)
    model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Sequential(convolution), nn.Flatten(), linear)
    assert sparse_layers(model) == {"1.0": convolution, "3": linear}


def test_a_layer_says_what_it_is() -> None:
    layer = SparseConv2d(4, 8, 3, groups=2, sparsity=0.5, normalize=True, activation_sparsity=0.9)
    text = repr(layer)
    for part in (
        "4, 8, kernel_size=(3, 3)",
        "active=72/144",
        "groups=2",
        "gamma=1",
        "activation_sparsity=0.9",
    ):
        assert part in text


def test_a_layer_moves_to_double_precision() -> None:
    layer = SparseConv2d(4, 8, 3, **NORMALISED).double()
    output = layer(torch.randn(1, 4, 5, 5, dtype=torch.float64))
    output.sum().backward()
    assert output.dtype == torch.float64
    assert layer.mask.dtype == torch.uint8
    assert torch.equal(layer.mask, mask_from_positions(layer.active_positions(), layer.geometry.size))


def test_two_layers_of_one_shape_start_differently_and_a_seed_repeats_them() -> None:
    torch.manual_seed(3)
    first, second = SparseConv2d(8, 8, 3), SparseConv2d(8, 8, 3)
    assert not torch.equal(first.mask, second.mask)
    torch.manual_seed(3)
    again = SparseConv2d(8, 8, 3)
    assert torch.equal(first.mask, again.mask)
    assert torch.equal(first.values, again.values)


def test_converting_a_layer_draws_no_random_number() -> None:
    dense = nn.Conv2d(2, 2, 3)
    mask = mask_from_positions(torch.arange(4), 36)
    before = torch.get_rng_state()
    SparseConv2d.from_conv2d(dense, mask)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_frozen_layer_stays_frozen() -> None:
    dense = nn.Conv2d(2, 2, 3).requires_grad_(False)
    layer = SparseConv2d.from_conv2d(dense, mask_from_positions(torch.arange(4), 36))
    assert not any(parameter.requires_grad for parameter in layer.parameters())


def test_one_image_without_a_batch_is_taken_as_pytorch_does() -> None:
    layer = SparseConv2d(2, 3, 3, activation_sparsity=0.5)
    image = torch.randn(2, 6, 6)
    torch.testing.assert_close(layer(image), layer(image.unsqueeze(0))[0])


def test_an_empty_batch_gives_an_empty_answer() -> None:
    assert SparseLinear(4, 3)(torch.zeros(0, 4)).shape == (0, 3)


@pytest.mark.parametrize("options", [{}, {"normalize": True, "activation_sparsity": 0.5}])
def test_autocast_trains_as_it_does_with_a_dense_layer(options: dict[str, Any]) -> None:
    layer = SparseConv2d(3, 4, 3, **options)
    images = torch.randn(2, 3, 8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(images)
    assert output.dtype == torch.bfloat16
    output.float().square().sum().backward()
    for tensor in (images, layer.values, layer.bias):
        assert tensor is not None
        assert tensor.grad is not None
        assert tensor.grad.dtype == torch.float32
        assert tensor.grad.abs().sum() > 0


def test_images_that_are_not_normalised_are_refused() -> None:
    layer = SparseConv2d(3, 4, 3)
    with pytest.raises(UserError, match=r"takes floats, not torch\.uint8.*mean"):
        layer(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
