import math

import pytest
import torch
from torch import nn

from fedmef.methods.extrusion import BudgetAwareRate, Extrusion, MarkedWeights
from fedmef.nn import SparseConv2d


def small_model() -> nn.Module:
    layer = SparseConv2d(1, 2, (1, 4), bias=False, sparsity=0.5)
    layer.assign(torch.tensor([0, 2, 5, 7]), torch.tensor([0.5, -0.1, 0.2, -3.0]))
    return nn.Sequential(layer)


def test_the_smallest_active_weights_are_marked_and_never_pruned_ones() -> None:
    marked = MarkedWeights(small_model(), {"0": 2})
    ((_, index),) = marked.marked
    assert sorted(index.tolist()) == [1, 2]  # −0.1 and 0.2
    assert float(marked.squared_norm().detach()) == pytest.approx(0.1**2 + 0.2**2)


def test_the_penalty_pulls_only_on_marked_weights() -> None:
    model = small_model()
    MarkedWeights(model, {"0": 2}).squared_norm().backward()  # type: ignore[no-untyped-call]
    gradient = model.get_submodule("0").get_parameter("values").grad
    assert gradient is not None
    torch.testing.assert_close(gradient, torch.tensor([0.0, -0.2, 0.4, 0.0]))


def test_the_norm_is_read_anew_after_a_step() -> None:
    model = small_model()
    marked = MarkedWeights(model, {"0": 1})
    with torch.no_grad():
        model.get_submodule("0").get_parameter("values")[1] = 0.0
    assert float(marked.squared_norm().detach()) == 0.0


def test_a_model_without_marked_weights_has_no_penalty() -> None:
    assert float(MarkedWeights(small_model(), {}).squared_norm()) == 0.0


def test_the_rate_starts_high_and_ends_at_the_ordinary_one() -> None:
    rate = BudgetAwareRate(initial=1.0, ordinary=0.1, budget=10)
    norm = 2.0
    sigmoid = 1 / (1 + math.exp(-norm))
    assert rate.value(0, norm) == pytest.approx(2 * sigmoid - 1)
    assert rate.value(4, norm) == pytest.approx((20 - 8) / (20 - 4) * (2 * sigmoid - 1))
    assert rate.value(10, norm) == 0.1


def test_the_rate_is_the_ordinary_one_once_the_weights_are_empty() -> None:
    assert BudgetAwareRate(initial=1.0, ordinary=0.1, budget=10).value(0, 0.0) == 0.1


def test_a_huge_norm_does_not_overflow() -> None:
    assert BudgetAwareRate(initial=1.0, ordinary=0.1, budget=10).value(0, 1e6) == 1.0


@pytest.mark.parametrize(("strength", "left"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0), (100.0, 0.0)])
def test_a_step_of_the_penalty_empties_a_weight_at_most(strength: float, left: float) -> None:
    model = small_model()
    values = model.get_submodule("0").get_parameter("values")
    before = values.detach().clone()
    extrusion = Extrusion(MarkedWeights(model, {"0": 2}), BudgetAwareRate(0.5, 0.5, 10), strength)
    rate = extrusion.learning_rate(0)
    assert rate == 0.5
    extrusion.penalty().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    torch.testing.assert_close(values - rate * values.grad, before * torch.tensor([1, left, left, 1]))
