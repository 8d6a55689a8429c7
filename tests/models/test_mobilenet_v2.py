"""MobileNetV2: the published size, both strides, any width."""

import pytest
import torch
from torch import nn

from fedmef.models.mobilenet_v2 import divisible_channels, mobilenet_v2
from fedmef.models.resnet import Stem


def test_the_imagenet_network_has_the_published_size() -> None:
    with torch.device("meta"):
        network = mobilenet_v2(classes=1000, stem="imagenet")
    assert sum(parameter.numel() for parameter in network.parameters()) == 3_504_872


def test_the_half_width_network_has_the_published_size() -> None:
    with torch.device("meta"):
        network = mobilenet_v2(classes=1000, width=16, stem="imagenet")
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_968_680


@pytest.mark.parametrize(
    ("channels", "expected"),
    [(3.0, 8), (8.0, 8), (12.0, 16), (11.2, 16), (19.0, 24), (33.6, 32), (1280.0, 1280)],
)
def test_channels_round_to_eights_and_lose_at_most_a_tenth(channels: float, expected: int) -> None:
    assert divisible_channels(channels) == expected


@pytest.mark.parametrize(("stem", "expected"), [("cifar", 4), ("imagenet", 1)])
def test_the_strides_decide_the_size_of_the_last_features(stem: Stem, expected: int) -> None:
    network = mobilenet_v2(classes=2, width=8, stem=stem)
    assert network.features(torch.zeros(2, 3, 32, 32)).shape == (2, 1280, expected, expected)


def test_the_last_convolution_grows_but_never_shrinks() -> None:
    with torch.device("meta"):
        assert mobilenet_v2(classes=2, width=16).get_parameter("features.18.0.weight").shape[0] == 1280
        assert mobilenet_v2(classes=2, width=64).get_parameter("features.18.0.weight").shape[0] == 2560


@pytest.mark.parametrize(("stem", "size"), [("cifar", 32), ("imagenet", 64)])
def test_an_odd_width_and_one_channel_give_logits(stem: Stem, size: int) -> None:
    network = mobilenet_v2(classes=7, channels=1, width=11, stem=stem)
    assert network.get_parameter("features.0.0.weight").shape == (11, 1, 3, 3)
    assert network(torch.zeros(2, 1, size, size)).shape == (2, 7)


def test_training_draws_no_random_numbers() -> None:
    assert not any(isinstance(module, nn.Dropout) for module in mobilenet_v2(classes=2, width=8).modules())


def test_parameters_are_named_as_in_torchvision() -> None:
    names = mobilenet_v2(classes=2, width=8).state_dict().keys()
    assert {
        "features.0.0.weight",
        "features.1.conv.1.weight",
        "features.18.1.bias",
        "classifier.1.bias",
    } <= names
