"""Growth scores are the dense gradient at pruned positions, and nothing else."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmef.errors import FedmefError, UserError
from fedmef.nn import ReLU, ReLU6, SparseConv2d, growth_scores, sparse_layers
from fedmef.nn.layers import SparseLinear
from tests.nn.reference import active_weights, dense_theta, plain_convolution, plain_weight


def network(**options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    options.setdefault("sparsity", 0.8)
    options.setdefault("dtype", torch.float64)
    return nn.Sequential(
        SparseConv2d(2, 6, 3, **options),
        ReLU(),
        SparseConv2d(6, 8, 3, groups=2, **options),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        SparseLinear(8, 4, **options),
    )


IMAGES = torch.randn(3, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def loss(model: nn.Module) -> Tensor:
    outputs: Tensor = model(IMAGES)
    return outputs.square().sum()


def dense_gradient(layer: SparseConv2d, images: Tensor, upstream: Tensor) -> Tensor:
    """Autograd's gradient of θ̂ times each filter's scale, with zeros at the active positions."""
    weight = plain_weight(layer, dense_theta(layer).detach()).requires_grad_()
    gained = weight if layer.gain is None else weight * layer.gain.detach().view(-1, 1, 1, 1)
    plain_convolution(layer, images, gained, None).backward(upstream)  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    active = active_weights(layer)
    scale = torch.ones(len(active), dtype=torch.float64)
    if (normalization := layer.geometry.normalization) is not None:
        for number, (filter_, is_active) in enumerate(zip(dense_theta(layer).detach(), active, strict=True)):
            count = int(is_active.sum())
            energy = count * filter_[is_active].var(unbiased=False) if count >= 2 else torch.inf
            scale[number] = normalization.gamma / (energy + normalization.epsilon) ** 0.5
    return (weight.grad * scale.view(-1, 1, 1, 1) * ~active).flatten()


@pytest.mark.parametrize(
    "options",
    [{}, {"normalize": True}, {"normalize": True, "gamma": 1.7}, {"normalize": True, "affine": True}],
)
def test_scores_equal_the_dense_gradient_times_the_filters_scale(options: dict[str, Any]) -> None:
    layer = SparseConv2d(4, 6, 3, sparsity=0.8, bias=False, dtype=torch.float64, **options)
    if layer.gain is not None:
        nn.init.normal_(layer.gain)
    images = torch.randn(2, 4, 7, 7, dtype=torch.float64)
    upstream = torch.randn(2, 6, 5, 5, dtype=torch.float64)
    size = layer.geometry.size
    with growth_scores(layer, {"": size}) as scores:
        layer(images).backward(upstream)
    expected = dense_gradient(layer, images, upstream)
    found = np.zeros(size)
    found[scores[""].positions] = scores[""].gradients
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("count", [0, 1, 7, 50])
def test_the_largest_are_chosen_and_none_that_is_active(count: int) -> None:
    model = network(normalize=True)
    name = "2"
    with growth_scores(model, {name: 10_000}) as everything:
        loss(model).backward()  # type: ignore[no-untyped-call]
    with growth_scores(model, {name: count}) as scores:
        loss(model).backward()  # type: ignore[no-untyped-call]
    assert list(scores) == [name]
    positions, gradients = scores[name].positions, scores[name].gradients
    assert positions.size == count
    assert not np.isin(positions, sparse_layers(model)[name].active_positions()).any()
    order = np.sort(np.argsort(-np.abs(everything[name].gradients))[:count])
    np.testing.assert_array_equal(positions, everything[name].positions[order])
    np.testing.assert_array_equal(gradients, everything[name].gradients[order])


def test_the_activation_cache_is_what_scores_are_made_of() -> None:
    # All but the largest input is forgotten, so that only its own weights can have a score.
    layer = SparseConv2d(4, 2, 1, bias=False, activation_sparsity=0.75)
    layer.assign(torch.tensor([0]), torch.tensor([1.0]))
    pixel = torch.tensor([1.0, 2.0, 9.0, 3.0]).view(1, 4, 1, 1)
    with growth_scores(layer, {"": 8}) as scores:
        layer(pixel).backward(torch.tensor([10.0, 20.0]).view(1, 2, 1, 1))
    assert scores[""].positions.tolist() == [2, 6]
    assert scores[""].gradients.tolist() == [90, 180]


def test_a_layer_without_pruned_positions_has_no_scores() -> None:
    layer = SparseConv2d(2, 2, 3, sparsity=0.0)
    with growth_scores(layer, {"": 5}) as scores:
        layer(torch.randn(1, 2, 4, 4)).sum().backward()
    assert scores[""].positions.size == 0


def test_ordinary_gradients_are_not_changed_by_looking() -> None:
    model = network(normalize=True, activation_sparsity=0.5)
    loss(model).backward()  # type: ignore[no-untyped-call]
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with growth_scores(model, dict.fromkeys(sparse_layers(model), 5)) as scores:
        loss(model).backward()  # type: ignore[no-untyped-call]
    assert scores.keys() == {"0", "2", "5"}
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert gradient is not None
        assert torch.equal(parameter.grad, gradient)


def test_nobody_looks_after_the_block() -> None:
    model = network()
    with growth_scores(model, {"2": 3}) as scores:
        loss(model).backward()  # type: ignore[no-untyped-call]
    found = scores["2"]
    loss(model).backward()  # type: ignore[no-untyped-call]
    assert scores["2"] is found
    assert all(layer.observe_growth is None for layer in sparse_layers(model).values())


def test_nobody_looks_after_an_error_in_the_block() -> None:
    model = network()
    with pytest.raises(RuntimeError, match="in the block"), growth_scores(model, {"2": 3}):
        raise RuntimeError("in the block")
    assert all(layer.observe_growth is None for layer in sparse_layers(model).values())


def test_an_unknown_layer_is_named() -> None:
    model = network()
    with pytest.raises(UserError, match="'1'"), growth_scores(model, {"0": 3, "1": 3}):
        pass
    assert sparse_layers(model)["0"].observe_growth is None


def test_a_layer_that_takes_part_twice_is_refused() -> None:
    layer = SparseConv2d(2, 2, 3, padding=1, sparsity=0.5)
    with pytest.raises(FedmefError, match="took part twice"), growth_scores(nn.Sequential(layer), {"0": 3}):
        layer(layer(torch.randn(1, 2, 4, 4))).sum().backward()
    assert layer.observe_growth is None


def test_asking_a_dense_layer_for_scores_leaves_its_gradient_alone() -> None:
    model = nn.Sequential(SparseConv2d(2, 3, 3, sparsity=0.0))
    images = torch.randn(2, 2, 6, 6)
    model(images).square().sum().backward()
    expected = model.get_parameter("0.values").grad
    assert expected is not None
    model.zero_grad()
    with growth_scores(model, {"0": 1}) as scores:
        model(images).square().sum().backward()
    assert scores["0"].positions.size == 0
    torch.testing.assert_close(model.get_parameter("0.values").grad, expected)


def test_scores_are_numpy_arrays_that_no_later_pass_changes() -> None:
    model = network()
    with growth_scores(model, {"2": 3}) as scores:
        loss(model).backward()  # type: ignore[no-untyped-call]
    positions, gradients = scores["2"].positions, scores["2"].gradients
    assert positions.dtype == np.int64
    assert gradients.dtype == np.float64
    before = positions.copy(), gradients.copy()
    with growth_scores(model, {"2": 3}):
        (3 * loss(model)).backward()  # type: ignore[no-untyped-call]
    np.testing.assert_array_equal(positions, before[0])
    np.testing.assert_array_equal(gradients, before[1])


def before_relu(rectify: nn.Module) -> nn.Sequential:
    """NSConv with a filter of no weight, one of one and two that live, directly before a ReLU."""
    layer = SparseConv2d(1, 4, 2, normalize=True, bias=False, dtype=torch.float64)
    layer.assign(torch.tensor([4, 8, 9, 12, 13]), torch.tensor([5.0, 1.0, 2.0, -3.0, 3.0]))
    return nn.Sequential(layer, rectify, nn.Flatten(), nn.Linear(36, 3, dtype=torch.float64))


@pytest.mark.parametrize("rectify", [ReLU(), ReLU6()])
def test_a_dead_filter_directly_before_a_relu_can_grow_back(rectify: nn.Module) -> None:
    model, images = before_relu(rectify), torch.randn(3, 1, 4, 4, dtype=torch.float64)
    assert not model[0](images)[:, :2].any()
    with growth_scores(model, {"0": 16}) as scores:
        model(images).square().sum().backward()
    # Every pruned position has a score: four of the empty filter, three of the next, two of each other.
    assert (scores["0"].positions // 4).tolist() == [0] * 4 + [1] * 3 + [2] * 2 + [3] * 2
    assert scores["0"].gradients.all()


def test_after_the_block_nothing_passes_at_zero() -> None:
    model, images = before_relu(ReLU()), torch.randn(3, 1, 4, 4, dtype=torch.float64)
    with growth_scores(model, {"0": 16}):
        pass
    outputs = model[0](images)
    (upstream,) = torch.autograd.grad(model[1:](outputs).square().sum(), outputs)
    assert not upstream[:, :2].any()
    assert upstream[:, 2:].any()
