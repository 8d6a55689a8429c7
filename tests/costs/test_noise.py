"""A device on noise: what it trains on, and in which rounds."""

import numpy as np
import pytest

from fedmef.costs.noise import noise_model, noise_samples, round_jobs
from tests.small import small


def test_an_epoch_goes_over_the_same_images_again() -> None:
    samples = noise_samples(4, (3, 8, 8), 3, steps=2)
    assert samples.images.shape == (4, 3, 8, 8)
    assert samples.labels.tolist() == [0, 1, 2, 0]
    assert len(samples) == 8
    assert np.array_equal(np.bincount(samples.indices), [2, 2, 2, 2])


def test_every_measurement_has_the_same_noise() -> None:
    one, two = noise_samples(4, (1, 8, 8), 10), noise_samples(4, (1, 8, 8), 10)
    assert np.array_equal(one.images, two.images)


def test_a_model_is_for_such_images() -> None:
    network = noise_model(small(), (3, 8, 8), 7).network
    assert (network.input.shape, network.classes) == ((3, 8, 8), 7)


@pytest.mark.parametrize("method", ["fedmef", "feddst", "prunefl"])
def test_an_ordinary_round_and_the_one_that_exchanges_most_are_measured(method: str) -> None:
    ordinary, adjusting = round_jobs(small(method, rounds=10, adjust_every=2, adjust_until=8))
    assert not ordinary.adjusts
    assert adjusting.round == 2  # the rate falls from the first adjustment on


@pytest.mark.parametrize(("method", "rounds"), [("fedavg", 10), ("fl_pqsu", 10), ("fedmef", 2)])
def test_without_adjustments_there_is_one_round_to_measure(method: str, rounds: int) -> None:
    (ordinary,) = round_jobs(small(method, rounds=rounds, adjust_every=5))
    assert (ordinary.round, ordinary.adjusts) == (0, False)


def test_methods_with_the_same_recipe_share_a_model() -> None:
    tiny, dst, pqsu, mef = (
        noise_model(small(name, batch_size=size), (1, 8, 8), 10)
        for name, size in (("fedtiny", 4), ("feddst", 8), ("fl_pqsu", 4), ("fedmef", 4))
    )
    assert tiny is dst
    assert len({id(model) for model in (tiny, pqsu, mef)}) == 3
    assert noise_model(small("fedtiny", sparsity=0.5), (1, 8, 8), 10) is not tiny
