import math

import pytest

from fedmef.wire.sizes import SCHEMES, Rule, Scheme, choose_scheme, index_bits, scheme_bits


@pytest.mark.parametrize(("count", "bits"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1024, 10)])
def test_an_index_takes_the_rounded_up_logarithm(count: int, bits: int) -> None:
    assert index_bits(count) == bits


@pytest.mark.parametrize(
    ("scheme", "bits"),
    [
        ("dense", 100 * 32),
        ("bitmap", 100 + 10 * 32),
        ("coo", 10 * 7 + 10 * 32),
        ("csr", 10 * 5 + 5 * 4 + 10 * 32),  # 5 rows of 20
        ("csc", 10 * 3 + 20 * 4 + 10 * 32),
    ],
)
def test_the_formulas_of_the_appendix(scheme: Scheme, bits: int) -> None:
    assert scheme_bits(scheme, 100, 10, 32, 5, 20) == bits


def test_rice_comes_close_to_the_entropy_of_a_random_mask() -> None:
    entropy = -(0.1 * math.log2(0.1) + 0.9 * math.log2(0.9))
    bits = scheme_bits("rice", 1_000_000, 100_000, 0, 1000, 1000) / 1_000_000
    assert bits == pytest.approx(0.4756, abs=1e-4)
    assert entropy < bits < 1.02 * entropy


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("bits", [0, 16, 32])
def test_auto_takes_the_smallest(density: float, bits: int) -> None:
    shape = (4096, int(4096 * density), bits, 64, 64)
    possible = [scheme for scheme in SCHEMES if bits or scheme != "dense"]
    chosen = choose_scheme("auto", *shape)
    assert chosen in possible
    assert scheme_bits(chosen, *shape) == min(scheme_bits(scheme, *shape) for scheme in possible)


@pytest.mark.parametrize(
    ("nonzero", "rows", "scheme"),
    [
        (1000, 20, "dense"),
        (900, 20, "dense"),
        (899, 20, "bitmap"),
        (300, 20, "bitmap"),
        (299, 20, "coo"),
        (100, 20, "coo"),
        (99, 20, "csr"),
        (99, 50, "csc"),
    ],
)
def test_the_rule_of_the_paper_goes_by_density(nonzero: int, rows: int, scheme: Scheme) -> None:
    assert choose_scheme("paper", 1000, nonzero, 32, rows, 1000 // rows) == scheme


def test_a_layer_pruned_to_90_percent_counts_as_10_percent_dense() -> None:
    assert choose_scheme("paper", 36864, 3686, 32, 64, 576) == "coo"


@pytest.mark.parametrize("rule", ["dense", "paper"])
def test_positions_alone_are_never_dense(rule: Rule) -> None:
    assert choose_scheme(rule, 100, 100, 0, 10, 10) == "bitmap"
