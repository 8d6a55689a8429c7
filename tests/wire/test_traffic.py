"""The bytes that are promised, of real messages: ResNet18, CIFAR stem, 90 % sparse, next to FedAvg's."""

import pytest

from benchmarks.wire import GOALS, exchange, job_of, network, round_trip
from fedmef.sparsity.model import Masks, Model
from fedmef.wire.broadcast import encode_broadcast
from fedmef.wire.floats import WireType
from fedmef.wire.schemes import Rule

AUTO = job_of("auto", "fp32")


@pytest.fixture(scope="module")
def sparse() -> Model:
    return network(0.9)


@pytest.fixture(scope="module")
def fedavg() -> int:
    return sum(map(len, round_trip(network(None), "auto", "fp32")))


def down(model: Model, known: Masks | None = None) -> int:
    """The bytes of a broadcast to a device that holds the network."""
    return len(encode_broadcast(model, AUTO, known=known, knows_network=True))


@pytest.mark.parametrize(("way", "bound"), GOALS.items(), ids=str)
def test_a_round_trip_is_as_small_as_promised(
    way: tuple[Rule, WireType], bound: float, sparse: Model, fedavg: int
) -> None:
    assert sum(map(len, round_trip(sparse, *way))) <= bound * fedavg


def test_auto_is_the_smallest(sparse: Model) -> None:
    schemes: tuple[Rule, ...] = ("bitmap", "csr", "rice")
    auto = len(encode_broadcast(sparse, AUTO))
    assert all(auto <= len(encode_broadcast(sparse, job_of(scheme, "fp32"))) for scheme in schemes)


def test_containers_cost_little(sparse: Model) -> None:
    values = sum(sparse.state[name].nbytes for name in sparse.network.floats)
    assert down(sparse, sparse.masks()) - values < 5000


def test_a_network_costs_a_thousandth_of_its_weights_and_only_the_first_time(sparse: Model) -> None:
    first, later = len(encode_broadcast(sparse, AUTO)), down(sparse)
    assert 0 < first - later < 20_000
    assert first - later < 0.005 * later


def test_a_difference_is_smaller_than_the_masks_even_after_the_largest_adjustment() -> None:
    model = network(0.9)
    before = model.masks()
    exchange(model, 0.4)
    none, difference, whole = (down(model, known) for known in (model.masks(), before, None))
    assert difference - none < 0.75 * (whole - none)
