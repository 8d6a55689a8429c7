"""How many weights each layer keeps."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.errors import UserError
from fedmef.sparsity import Distribution, layer_counts

dimensions = st.integers(1, 40)
linears = st.tuples(dimensions, dimensions)
convolutions = st.tuples(dimensions, dimensions, st.integers(1, 5), st.integers(1, 5))
networks = st.dictionaries(
    st.sampled_from("abcdefgh"), st.one_of(linears, convolutions), min_size=1, max_size=8
)
sparsities = st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999]))


def test_uniform_keeps_the_same_share_of_every_layer() -> None:
    shapes = {"convolution": (2, 5, 3, 3), "linear": (4, 5)}
    assert layer_counts(shapes, 0.9) == {"convolution": 9, "linear": 2}


def test_a_layer_has_two_weights_a_filter_and_others_give_them_by_hand() -> None:
    # 10 % of 1000, 500 and 20 weights are 100, 50 and 2, but 4 filters need 8. Beyond two a filter the others
    # have 80 and 40, so 4 and 2 of the 6 come from them.
    shapes = {"a": (10, 100), "b": (5, 100), "narrow": (4, 5)}
    assert layer_counts(shapes, 0.9, least=2) == {"a": 96, "b": 48, "narrow": 8}


def test_a_network_that_is_narrow_everywhere_has_more_weights_than_asked_for_by_hand() -> None:
    shapes = {"a": (10, 12), "narrow": (4, 5), "none": (3, 3)}
    assert layer_counts(shapes, 0.9, least=2) == {"a": 20, "narrow": 8, "none": 0}


def test_erk_by_hand() -> None:
    # 100 and 400 weights, of which half is 250. Erdős–Rényi: 10 + 10 = 20 and 20 + 20 = 40, so a third
    # and two thirds of 250, which is 83.3 and 166.7.
    assert layer_counts({"small": (10, 10), "large": (20, 20)}, 0.5, "erk") == {"small": 83, "large": 166}


def test_erk_counts_the_kernel_as_two_more_dimensions() -> None:
    # 4 + 4 + 3 + 3 = 14 and 16 + 16 + 1 + 1 = 34, of a budget of (144 + 256) / 4 = 100
    shapes = {"three": (4, 4, 3, 3), "one": (16, 16, 1, 1)}
    counts = layer_counts(shapes, 0.75, "erk")
    assert counts == {"three": math.floor(100 * 14 / 48), "one": math.floor(100 * 34 / 48)}


def test_erk_makes_a_layer_dense_that_would_exceed_it_and_shares_the_rest() -> None:
    # 4 and 400 weights, of which half is 202: by 4 : 40 the small one would get 18.4, so it is dense.
    assert layer_counts({"small": (2, 2), "large": (20, 20)}, 0.5, "erk") == {"small": 4, "large": 198}


@given(shapes=networks, sparsity=sparsities)
@settings(deadline=None)
def test_no_distribution_exceeds_the_budget_or_a_layer(
    shapes: dict[str, tuple[int, ...]], sparsity: float
) -> None:
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    budget = sum(sizes.values()) * (1 - sparsity) + 1e-6
    uniform = layer_counts(shapes, sparsity, "uniform")
    erk = layer_counts(shapes, sparsity, "erk")
    for counts in (uniform, erk):
        assert counts.keys() == shapes.keys()
        assert all(0 <= counts[name] <= sizes[name] for name in shapes)
        assert sum(counts.values()) <= budget
    assert sum(erk.values()) > budget - 1 - len(shapes)  # rounding down loses less than one weight a layer
    assert all(uniform[name] > sizes[name] * (1 - sparsity) - 1 for name in shapes)


@given(shapes=networks, sparsity=sparsities, distribution=st.sampled_from(["uniform", "erk"]))
@settings(deadline=None)
def test_every_filter_that_can_have_two_weights_has_them(
    shapes: dict[str, tuple[int, ...]], sparsity: float, distribution: Distribution
) -> None:
    plain = layer_counts(shapes, sparsity, distribution)
    counts = layer_counts(shapes, sparsity, distribution, least=2)
    least = {name: min(2 * shape[0], math.prod(shape)) for name, shape in shapes.items() if plain[name]}
    assert all(counts[name] >= count for name, count in least.items())
    assert all(counts[name] <= max(plain[name], least.get(name, 0)) for name in shapes)
    assert sum(counts.values()) == max(sum(plain.values()), sum(least.values()))


@given(shapes=networks)
@settings(deadline=None)
def test_no_sparsity_keeps_everything(shapes: dict[str, tuple[int, ...]]) -> None:
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    assert layer_counts(shapes, 0.0, "uniform") == sizes
    assert layer_counts(shapes, 0.0, "erk") == sizes


@given(sparsity=sparsities)
@settings(deadline=None)
def test_no_layers_have_no_counts(sparsity: float) -> None:
    assert layer_counts({}, sparsity, "uniform") == {}
    assert layer_counts({}, sparsity, "erk") == {}


def test_an_unknown_distribution_is_named() -> None:
    with pytest.raises(UserError, match=r"'balanced'.*'uniform' or 'erk'"):
        layer_counts({"layer": (2, 2)}, 0.5, "balanced")  # type: ignore[arg-type]
