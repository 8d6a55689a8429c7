"""NSConv keeps the signal: networks of all shapes learn, with one learning rate."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fedmef import sparsify
from fedmef.nn import check_signal
from tests.nn.zoo import ARCHITECTURES, constant_loss, look

QUICK = ("small_cnn", "residual 3", "vgg, with biases", "depthwise separable", "SiLU")


@pytest.mark.parametrize("sparsity", [0.9, pytest.param(0.95, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in ARCHITECTURES],
)
def test_every_architecture_learns_at_one_rate(name: str, sparsity: float) -> None:
    seen = look(name, sparsity)
    assert 0.3 <= seen.features <= 3
    assert seen.smallest_gradient > 0
    assert seen.largest_gradient < 1000
    assert seen.loss < constant_loss() / 2


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, values: Tensor) -> Tensor:
        return values * self.factor


def network(*middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*first, *middle, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("normalize", [False, True])
def test_a_living_network_has_no_problem_and_stays_as_it_is(normalize: bool) -> None:
    model = sparsify(network(nn.Conv2d(8, 8, 3), nn.ReLU()), sparsity=0.5, normalize=normalize).eval()
    before, drawn = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    assert check_signal(model, IMAGES, 5) == []
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert not model.training


def test_a_layer_that_lets_nothing_through_is_named() -> None:
    dead = nn.Conv2d(8, 8, 3, bias=False)
    nn.init.zeros_(dead.weight)
    assert check_signal(network(dead, nn.ReLU()), IMAGES, 5) == ["'3' gives 0 for every image"]


def test_a_layer_that_cannot_learn_is_named() -> None:
    assert "'0' gets a gradient of 0: it cannot learn" in check_signal(network(Times(0.0)), IMAGES, 5)


def test_a_gradient_that_explodes_is_named() -> None:
    small = nn.Conv2d(8, 8, 1, bias=False)
    model = network(small)
    with torch.no_grad():
        small.weight.mul_(1e-6)  # what comes before and after it learns that much more slowly
    (problem,) = check_signal(model, IMAGES, 5)
    assert problem.startswith("'3' gets a gradient ")
    assert problem.endswith(" times that of other layers")


def test_numbers_that_are_not_finite_are_named() -> None:
    assert check_signal(network(Times(1e30), Times(1e30)), IMAGES, 5)[0].startswith("'7' gives ")


def test_a_part_that_is_not_trained_stays_so() -> None:
    model = network(nn.Conv2d(8, 8, 3)).train()
    model[1].eval()
    check_signal(model, IMAGES, 5)
    assert [module.training for module in model] == [True, False, *[True] * (len(model) - 2)]
