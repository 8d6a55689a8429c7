"""What is known of a network before it is converted."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmef.errors import UserError
from fedmef.nn.graph import trace_network
from tests.nn import networks


def nothing(name: str) -> bool:
    return False


class OutOfOrder(nn.Module):
    """Layers that are written in another order than they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 2)
        self.left = nn.Conv2d(1, 4, 1)
        self.right = nn.Conv2d(1, 4, 3, padding=1)
        self.first = nn.Conv2d(1, 1, 1)
        self.input_norm = nn.BatchNorm2d(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.input_norm(x))
        y = self.norm(torch.relu(self.left(x)) + F.max_pool2d(self.right(x), 1))
        logits: Tensor = self.last(y.mean((2, 3)))
        return logits


def test_layers_come_in_order_of_execution() -> None:
    assert trace_network(OutOfOrder(), nothing).layers == ("first", "left", "right", "last")


def test_a_batchnorm_is_fed_by_the_nearest_layers() -> None:
    feeds = trace_network(OutOfOrder(), nothing).feeds
    assert feeds == {"norm": {"left", "right"}, "input_norm": {None}}


def test_a_residual_sum_feeds_from_both_sides() -> None:
    feeds = trace_network(networks.preact_resnet(), nothing).feeds
    assert feeds["blocks.0.bn1"] == {"stem"}
    assert feeds["blocks.1.bn1"] == {"blocks.0.conv2", "stem"}
    assert feeds["blocks.2.bn1"] == {"blocks.1.conv2", "blocks.1.shortcut"}
    assert feeds["bn"] == {"blocks.2.conv2", "blocks.1.conv2", "blocks.1.shortcut"}


def test_modules_that_are_left_alone_are_not_looked_into() -> None:
    graph = trace_network(networks.preact_resnet(), lambda name: name == "blocks.1")
    assert not any(layer.startswith("blocks.1") for layer in graph.layers)
    assert graph.feeds["blocks.2.bn1"] == {"blocks.1"}


def test_functional_calls_are_noticed() -> None:
    assert trace_network(networks.preact_resnet(), nothing).functionals
    assert not trace_network(networks.vgg(), nothing).functionals


def test_a_layer_that_is_used_twice_counts_once() -> None:
    layer = nn.Conv2d(3, 3, 1)
    assert trace_network(nn.Sequential(layer, nn.ReLU(), layer), nothing).layers == ("0",)


def test_what_cannot_be_followed_is_named_with_the_reason() -> None:
    with pytest.raises(UserError, match=r"DataDependent\.forward\(\): .*control flow.*skip="):
        trace_network(networks.DataDependent(), nothing)
