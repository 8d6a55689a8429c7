"""Bytes of a step's tensors, by kind. Parameters and gradients by hand, the rest by comparison."""

import pytest
import torch

from fedmef.costs.tensors import measure_tensors
from tests.small import small

SHAPE = (1, 8, 8)
# small_cnn of width 4: three convolutions, a classifier, and two numbers a channel for each BatchNorm.
WEIGHTS = 36 + 288 + 1152 + 160 + 10 + 2 * (4 + 8 + 16)
STATISTICS = 2 * (4 + 8 + 16)


def test_fedavg_by_hand() -> None:
    cost = measure_tensors(small("fedavg"), SHAPE, 10)
    counters = 3 * 8  # each BatchNorm counts its batches in 64 bits
    assert cost.parameters == 4 * (WEIGHTS + STATISTICS) + counters
    assert cost.gradients == 4 * WEIGHTS
    assert cost.kept == cost.parameters + cost.gradients + cost.cache


def test_the_batch_is_no_activation() -> None:
    """It was there before; the first convolution keeps it without a copy."""
    images = 64
    cost = measure_tensors(small("fedavg", batch_size=images), SHAPE, 10)
    maps = images * (4 * 64 + 8 * 64 + 16 * 16)  # what each convolution gives out
    pooled = images * 8 * 16
    # BatchNorm keeps its input and ReLU its output, which is the next layer's input: twice each map. Pooling
    # keeps its output, and 64 bits for each of it that say where it came from.
    by_hand = 2 * 4 * maps + (4 + 8) * pooled
    # The rest is small: means and deviations, the features at the end and the loss.
    assert 0 < cost.cache - by_hand < images * 64 * 4 / 2


@pytest.mark.parametrize("method", ["fl_pqsu", "fedtiny", "feddst"])
def test_sparse_methods_keep_whole_activations(method: str) -> None:
    dense, sparse = (measure_tensors(small(name), SHAPE, 10) for name in ("fedavg", method))
    assert sparse.parameters < 0.35 * dense.parameters
    assert sparse.gradients < 0.35 * dense.gradients
    assert sparse.cache == pytest.approx(dense.cache, rel=0.05)


def test_fedmef_keeps_a_tenth_of_them_and_half_of_that_in_half_precision() -> None:
    dense, whole, half = (
        measure_tensors(experiment, SHAPE, 10).cache
        for experiment in (small("fedavg"), small("fedmef"), small("fedmef", cache_dtype="fp16"))
    )
    assert half < whole < 0.25 * dense


def test_an_adjustment_is_in_the_peak() -> None:
    settings = {"rounds": 3, "adjust_every": 1, "adjust_until": 3}
    with_one = measure_tensors(small("prunefl", batch_size=2, **settings), SHAPE, 10)
    without = measure_tensors(small("prunefl", batch_size=2, rounds=3, adjust_every=9), SHAPE, 10)
    assert with_one.peak > without.peak
    assert with_one.kept == without.kept


def test_measuring_leaves_the_generators_as_they_were() -> None:
    state = torch.get_rng_state()
    first = measure_tensors(small(), SHAPE, 10)
    assert torch.equal(torch.get_rng_state(), state)
    assert measure_tensors(small(), SHAPE, 10) == first
