"""The bytes that are promised, of real messages: ResNet18, CIFAR stem, 90 % sparse, beside FedAvg's."""

import pytest
from torch import nn

from benchmarks.wire import GOALS, exchange, network, round_trip
from fedmef.methods import Plan
from fedmef.nn import sparse_layers
from fedmef.wire import Rule
from fedmef.wire.exchange import encode_broadcast

PLAN = Plan(0, 0.1)


@pytest.fixture(scope="module")
def sparse() -> nn.Module:
    return network(0.9)


@pytest.fixture(scope="module")
def fedavg() -> int:
    return sum(map(len, round_trip(network(None), "auto", "fp32")))


@pytest.mark.parametrize(("way", "bound"), GOALS.items(), ids=str)
def test_a_round_trip_is_as_small_as_promised(
    way: tuple[Rule, str], bound: float, sparse: nn.Module, fedavg: int
) -> None:
    assert sum(map(len, round_trip(sparse, *way))) <= bound * fedavg


def test_auto_is_the_smallest(sparse: nn.Module) -> None:
    schemes: tuple[Rule, ...] = ("bitmap", "csr", "rice")
    auto = len(encode_broadcast(sparse, PLAN))
    assert all(auto <= len(encode_broadcast(sparse, PLAN, scheme=scheme)) for scheme in schemes)


def test_containers_cost_little(sparse: nn.Module) -> None:
    values = sum(tensor.nbytes for tensor in sparse.state_dict().values() if tensor.is_floating_point())
    masks = {name: layer.mask.clone() for name, layer in sparse_layers(sparse).items()}
    assert len(encode_broadcast(sparse, PLAN, known=masks)) - values < 5000


def test_a_difference_is_smaller_than_the_masks_even_after_the_largest_adjustment() -> None:
    model = network(0.9)
    before = {name: layer.mask.clone() for name, layer in sparse_layers(model).items()}
    exchange(model, 0.4)
    after = {name: layer.mask for name, layer in sparse_layers(model).items()}
    none, difference, whole = (
        len(encode_broadcast(model, PLAN, known=known)) for known in (after, before, None)
    )
    assert difference - none < 0.75 * (whole - none)
