"""BatchNorm survives a batch with one value per channel, and is PyTorch's otherwise."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedmef.nn import guard_batchnorm
from fedmef.nn.batchnorm import frozen_statistics

CASES = [
    (nn.BatchNorm2d(3), (4, 3, 5, 5), (1, 3, 1, 1)),
    (nn.BatchNorm2d(3, affine=False), (2, 3, 1, 1), (1, 3, 1, 1)),
    (nn.BatchNorm1d(3), (4, 3), (1, 3)),
    (nn.BatchNorm1d(3), (1, 3, 2), (1, 3, 1)),
]


def trained(layer: nn.Module, images: Tensor) -> list[Tensor]:
    """Output, gradient and statistics of one training step."""
    leaf = images.clone().requires_grad_()
    output = layer(leaf)
    output.square().sum().backward()
    assert leaf.grad is not None
    return [output.detach(), leaf.grad, *layer.state_dict().values()]


@pytest.mark.parametrize(("plain", "shape", "lonely"), CASES)
def test_a_batch_with_a_variance_gives_what_pytorch_gives(
    plain: nn.Module, shape: tuple[int, ...], lonely: tuple[int, ...]
) -> None:
    plain = copy.deepcopy(plain)
    guarded = guard_batchnorm(copy.deepcopy(plain))
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for mine, theirs in zip(trained(guarded, images), trained(plain, images), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(guarded.eval()(images), plain.eval()(images))


@pytest.mark.parametrize(("plain", "shape", "lonely"), CASES)
def test_one_value_per_channel_is_normalised_with_the_running_statistics(
    plain: nn.Module, shape: tuple[int, ...], lonely: tuple[int, ...]
) -> None:
    guarded = guard_batchnorm(copy.deepcopy(plain))
    guarded(torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3 + 1)
    before = copy.deepcopy(guarded.state_dict())
    pixel = torch.randn(lonely)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        copy.deepcopy(plain)(pixel)
    in_training = guarded(pixel)
    assert torch.equal(in_training, guarded.eval()(pixel))
    assert all(torch.equal(tensor, before[key]) for key, tensor in guarded.state_dict().items())


def test_guarding_keeps_names_and_weights() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Sequential(nn.BatchNorm1d(2)))
    before = model.state_dict()
    assert guard_batchnorm(model) is model
    assert list(model.state_dict()) == list(before)
    assert all(isinstance(model[position], kind) for position, kind in enumerate([nn.Conv2d, nn.BatchNorm2d]))


@pytest.mark.parametrize("training", [True, False])
def test_without_running_statistics_such_a_batch_becomes_the_bias(training: bool) -> None:
    guarded = guard_batchnorm(nn.BatchNorm2d(3, track_running_stats=False)).train(training)
    nn.init.constant_(guarded.get_parameter("bias"), 0.5)
    output = guarded(torch.randn(1, 3, 1, 1))
    torch.testing.assert_close(output.flatten(), torch.full((3,), 0.5))


@pytest.mark.parametrize("guard", [guard_batchnorm, lambda layer: layer], ids=["guarded", "plain"])
@pytest.mark.parametrize(("plain", "shape", "lonely"), CASES)
def test_with_frozen_statistics_a_batch_is_normalised_as_ever_and_nothing_is_noted(
    plain: nn.Module, shape: tuple[int, ...], lonely: tuple[int, ...], guard: Callable[[nn.Module], nn.Module]
) -> None:
    layer = guard(copy.deepcopy(plain))
    layer(torch.randn(shape) * 3 + 1)
    before, images = copy.deepcopy(layer.state_dict()), torch.randn(shape)
    with frozen_statistics(layer):
        output, gradient, *after = trained(layer, images)
    assert all(torch.equal(one, other) for one, other in zip(after, before.values(), strict=True))
    expected = trained(layer, images)
    assert torch.equal(output, expected[0])
    assert torch.equal(gradient, expected[1])
    assert any(not torch.equal(tensor, before[key]) for key, tensor in layer.state_dict().items())


def test_one_value_per_channel_needs_the_running_statistics_when_they_are_frozen_too() -> None:
    guarded = guard_batchnorm(nn.BatchNorm2d(3))
    guarded(torch.randn(4, 3, 5, 5) * 3 + 1)
    pixel = torch.randn(1, 3, 1, 1)
    expected = guarded(pixel)
    with frozen_statistics(guarded):
        assert torch.equal(guarded(pixel), expected)


def test_statistics_thaw_after_an_error_and_those_that_never_ran_stay() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False))
    with pytest.raises(RuntimeError, match="in the block"), frozen_statistics(model):
        raise RuntimeError("in the block")
    assert [layer.track_running_stats for layer in model] == [True, False]
