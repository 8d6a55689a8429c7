"""NSConv's normalisation, and Theorem 1: outputs have mean 0 and a variance that no density changes."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmef.errors import UserError
from fedmef.nn import FilterNormalization, SparseConv2d
from tests.nn.reference import active_weights

# Three filters of 3, 1 and 4 active weights.
LENGTHS = torch.tensor([3, 1, 4])
EIGHT = torch.tensor([1.0, 2.0, 6.0, 5.0, 1.0, 1.0, 3.0, 3.0], dtype=torch.float64)


def test_eight_weights_by_hand() -> None:
    filters = FilterNormalization(gamma=2.0, epsilon=1e-12).standardize(EIGHT, LENGTHS)
    # (1, 2, 6) − 3 has norm √14; one weight is dead; (1, 1, 3, 3) − 2 has norm 2
    expected = [-2 * 2 / 14**0.5, -1 * 2 / 14**0.5, 3 * 2 / 14**0.5, 0, -1, -1, 1, 1]
    assert filters.values.tolist() == pytest.approx(expected)
    assert filters.scale.tolist() == pytest.approx([2 / 14**0.5, 0, 1])


def test_eight_weights_with_the_papers_scaling_by_hand() -> None:
    normalization = FilterNormalization(scaling="paper", input_channels=9, epsilon=1e-12)
    filters = normalization.standardize(EIGHT, LENGTHS)
    # γ / √c_in times the weights in units of their deviation: √(14 / 3), and 1
    deviation = (14 / 3) ** 0.5
    expected = [value / 3 for value in (-2 / deviation, -1 / deviation, 3 / deviation, 0, -1, -1, 1, 1)]
    assert filters.values.tolist() == pytest.approx(expected)


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    gamma=st.floats(0.1, 3),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_every_live_filter_is_centred_and_has_norm_gamma(lengths: list[int], gamma: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    values = 100 * torch.randn(sum(lengths), generator=random, dtype=torch.float64)
    normalised = FilterNormalization(gamma).standardize(values, torch.tensor(lengths)).values
    for weights in torch.split(normalised, lengths):
        if weights.numel() < 2:
            assert not weights.any()
        else:
            assert weights.sum().item() == pytest.approx(0, abs=1e-9)
            assert weights.norm().item() == pytest.approx(gamma, rel=1e-3)


def test_weights_that_are_all_equal_give_zeros_and_finite_gradients() -> None:
    filters = FilterNormalization().standardize(torch.full((8,), 3.0), LENGTHS)
    assert not filters.values.any()
    assert filters.backward(torch.randn(8)).isfinite().all()


def test_an_unknown_scaling_is_named() -> None:
    with pytest.raises(UserError, match="scaling = 'layer'"):
        FilterNormalization(scaling="layer")  # type: ignore[arg-type]


SAMPLES = 4000


def outputs(layer: SparseConv2d, means: Tensor, deviation: float, seed: int) -> Tensor:
    """One output pixel [samples, live filters] of inputs with these means per channel."""
    _, channels, *kernel = layer.geometry.shape
    noise = torch.randn(SAMPLES, channels, *kernel, generator=torch.Generator().manual_seed(seed))
    live = active_weights(layer).flatten(1).sum(1) >= 2
    with torch.no_grad():
        result: Tensor = layer(means.view(-1, 1, 1) + deviation * noise)
    return result.flatten(1)[:, live]


def random_layer(kernel: int, channels: int, density: float, gamma: float, seed: int) -> SparseConv2d:
    return SparseConv2d(
        channels,
        600,
        kernel,
        bias=False,
        sparsity=1 - density,
        normalize=True,
        gamma=gamma,
        generator=np.random.default_rng(seed),
    )


layers = st.builds(
    random_layer,
    kernel=st.sampled_from([1, 2, 3, 5]),
    channels=st.sampled_from([16, 48]),
    density=st.one_of(st.sampled_from([0.02, 0.1, 1.0]), st.floats(0.02, 1.0)),
    gamma=st.sampled_from([1.0, 0.3, 2.0]),
    seed=st.integers(0, 999),
)


def gamma_of(layer: SparseConv2d) -> float:
    assert layer.geometry.normalization is not None
    return layer.geometry.normalization.gamma


@given(layer=layers, mean=st.floats(-2, 2), deviation=st.floats(0.2, 2), seed=st.integers(0, 999))
@settings(deadline=None, max_examples=25)
def test_theorem_1_when_all_inputs_share_a_mean(
    layer: SparseConv2d, mean: float, deviation: float, seed: int
) -> None:
    result = outputs(layer, torch.full((layer.geometry.shape[1],), mean), deviation, seed)
    assume(result.shape[1] >= 20)
    standard = gamma_of(layer) * deviation
    # every filter's own mean, six standard errors wide
    assert result.mean(0).abs().max() < 6 * standard / math.sqrt(SAMPLES) + 1e-4
    # variance over all: at worst (all filters alike) its standard error is 2.2 % of it
    assert result.square().mean().item() == pytest.approx(standard**2, rel=0.1)


@given(layer=layers, mean=st.floats(0.1, 2), deviation=st.floats(0.2, 2), seed=st.integers(0, 999))
@settings(deadline=None, max_examples=25)
def test_theorem_1_when_channels_have_means_of_their_own(
    layer: SparseConv2d, mean: float, deviation: float, seed: int
) -> None:
    means = torch.linspace(0, 2 * mean, layer.geometry.shape[1])  # average `mean`, as after a ReLU
    result = outputs(layer, means, deviation, seed)
    live = result.shape[1]
    assume(live >= 20)
    gamma = gamma_of(layer)
    lower, upper = gamma**2 * deviation**2, gamma**2 * (deviation**2 + mean**2)
    per_filter = result.square().mean(0)
    error = 5 * float(per_filter.std()) / math.sqrt(live) + 0.1 * lower
    assert abs(float(result.mean())) < 5 * math.sqrt(upper / live)
    assert lower - error <= float(per_filter.mean()) <= upper + error


@pytest.mark.parametrize(
    ("kernel", "density", "variance"), [(1, 0.1, 0.1), (3, 0.1, 0.9), (1, 1.0, 1.0), (3, 1.0, 9.0)]
)
def test_the_papers_scaling_does_not_keep_the_variance(kernel: int, density: float, variance: float) -> None:
    options = {"bias": False, "sparsity": 1 - density, "normalize": True}
    as_printed = SparseConv2d(200, 50, kernel, scaling="paper", **options)  # type: ignore[arg-type]
    ours = SparseConv2d(200, 50, kernel, **options)  # type: ignore[arg-type]
    means = torch.zeros(200)
    assert outputs(as_printed, means, 1.0, 0).square().mean().item() == pytest.approx(variance, rel=0.1)
    assert outputs(ours, means, 1.0, 0).square().mean().item() == pytest.approx(1.0, rel=0.1)


def test_a_filter_with_fewer_than_two_weights_is_dead_but_harmless() -> None:
    layer = SparseConv2d(2, 3, 2, normalize=True, bias=False)
    # filter 0: no weight, filter 1: one, filter 2: two
    layer.assign(torch.tensor([9, 16, 20]), torch.tensor([5.0, 1.0, 2.0]))
    images = torch.randn(2, 2, 4, 4, requires_grad=True)
    output = layer(images)
    assert not output[:, :2].any()
    assert output[:, 2].any()
    output.square().sum().backward()
    assert layer.values.grad is not None
    assert images.grad is not None
    assert layer.values.grad[0] == 0
    assert layer.values.grad.isfinite().all()
    assert images.grad.isfinite().all()


def test_a_layer_of_dead_filters_only_is_harmless() -> None:
    layer = SparseConv2d(1, 4, 1, sparsity=0.5, normalize=True, activation_sparsity=0.5)
    images = torch.randn(2, 1, 3, 3, requires_grad=True)
    output = layer(images)
    output.sum().backward()
    assert not output.any()
    assert layer.values.grad is not None
    assert layer.values.grad.tolist() == [0, 0]
    assert images.grad is not None
    assert not images.grad.any()


def test_a_dead_filter_can_grow_back_but_is_not_preferred() -> None:
    values = torch.tensor([3.0, 5.0, -1.0, 1.0, 9.0])  # filters of 2, 2, 1 and 0 weights
    filters = FilterNormalization().standardize(values, torch.tensor([2, 2, 1, 0]))
    alive = 1 / 2**0.5  # both living filters are (−1, 1) when centred
    torch.testing.assert_close(filters.scale, torch.tensor([alive, alive, 0.0, 0.0]))
    torch.testing.assert_close(filters.growth_scale, torch.full((4,), alive))


def test_a_layer_of_dead_filters_has_nothing_to_compare_with() -> None:
    filters = FilterNormalization().standardize(torch.tensor([3.0]), torch.tensor([1, 0]))
    assert filters.growth_scale.tolist() == [0.0, 0.0]


def test_equal_weights_learn_at_the_pace_of_the_other_filters() -> None:
    values = torch.tensor([3.0, 5.0, 0.0, 0.0])  # the second filter grew at 0
    filters = FilterNormalization().standardize(values, torch.tensor([2, 2]))
    assert filters.values[2:].tolist() == [0.0, 0.0]
    torch.testing.assert_close(filters.scale[1], filters.scale[0])
    gradient = filters.backward(torch.tensor([0.0, 0.0, 1.0, -1.0]))
    torch.testing.assert_close(gradient[2:], torch.tensor([1.0, -1.0]) * filters.scale[0])


def scales(energies: Tensor, **constants: Any) -> Tensor:
    """The scale of a filter (−a, a) with each of these energies 2a², next to an ordinary one."""
    ordinary = torch.tensor([3.0, 5.0], dtype=torch.float64)
    found = []
    for energy in energies.tolist():
        distance = math.sqrt(energy / 2)
        values = torch.cat([ordinary, torch.tensor([-distance, distance], dtype=torch.float64)])
        filters = FilterNormalization(**constants).standardize(values, torch.tensor([2, 2]))
        found.append(filters.scale[1])
    return torch.stack(found)


@pytest.mark.parametrize("constants", [{}, {"gamma": 0.3}, {"scaling": "paper", "input_channels": 4}])
def test_the_scale_does_not_jump_where_weights_become_equal(constants: dict[str, Any]) -> None:
    """From 1e-8 to 1e-4: ε is 1e-6."""
    found = scales(torch.logspace(-8, -4, 4001, dtype=torch.float64), **constants)
    # Steps of a quarter of a percent in energy change it by about as much, and not by a factor.
    assert (found.diff().abs() / found[:-1]).max() < 0.01


def test_far_from_epsilon_the_scale_is_that_of_equal_weights_or_of_its_own_norm() -> None:
    equal, small, at_epsilon, large = scales(torch.tensor([0.0, 1e-12, 1e-6, 1e-2], dtype=torch.float64))
    usual = 1 / math.sqrt(2 + 1e-6)
    assert equal.item() == pytest.approx(usual)
    assert small.item() == pytest.approx(usual, rel=1e-2)
    assert at_epsilon.item() == pytest.approx(1 / math.sqrt(2e-6))
    assert large.item() == pytest.approx(1 / math.sqrt(1e-2 + 1e-6))


def test_halfway_to_epsilon_the_scale_is_halfway_by_hand() -> None:
    (scale,) = scales(torch.tensor([0.5e-6], dtype=torch.float64))
    assert scale.item() == pytest.approx((1 / math.sqrt(2 + 1e-6) + 1 / math.sqrt(1.5e-6)) / 2)


def test_a_layer_whose_filters_are_all_nearly_equal_is_harmless() -> None:
    values = torch.tensor([1.0, 1.0 + 1e-7, 2.0, 2.0])
    filters = FilterNormalization().standardize(values, torch.tensor([2, 2]))
    assert filters.values.isfinite().all()
    assert filters.backward(torch.randn(4)).isfinite().all()
