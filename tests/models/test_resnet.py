"""ResNet: the published sizes, both stems, any width."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedmef.models.resnet import Stem, resnet18, resnet34, resnet50


def parameter_count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_resnet18_for_cifar_has_the_published_size() -> None:
    with torch.device("meta"):
        assert parameter_count(resnet18(classes=10, stem="cifar")) == 11_173_962


def test_imagenet_networks_have_the_published_sizes() -> None:
    with torch.device("meta"):
        assert parameter_count(resnet18(classes=1000, stem="imagenet")) == 11_689_512
        assert parameter_count(resnet34(classes=1000, stem="imagenet")) == 21_797_672
        assert parameter_count(resnet50(classes=1000, stem="imagenet")) == 25_557_032


@pytest.mark.parametrize("build", [resnet18, resnet34, resnet50])
@pytest.mark.parametrize(("stem", "size"), [("cifar", 32), ("imagenet", 64)])
def test_an_odd_width_and_one_channel_give_logits(
    build: Callable[..., nn.Module], stem: Stem, size: int
) -> None:
    network = build(classes=7, channels=1, width=5, stem=stem)
    assert network(torch.zeros(2, 1, size, size)).shape == (2, 7)


@pytest.mark.parametrize(("stem", "expected"), [("cifar", 4), ("imagenet", 1)])
def test_the_stem_decides_the_size_of_the_last_features(stem: Stem, expected: int) -> None:
    network = resnet18(classes=2, width=4, stem=stem).eval()
    features = network.maxpool(network.relu(network.bn1(network.conv1(torch.zeros(1, 3, 32, 32)))))
    features = network.layer4(network.layer3(network.layer2(network.layer1(features))))
    assert features.shape == (1, 32, expected, expected)


def test_the_bottleneck_strides_in_its_3x3_convolution() -> None:
    block = resnet50(classes=2, width=4).layer2[0]
    assert block.conv1.stride == (1, 1)
    assert block.conv2.stride == (2, 2)


def test_parameters_are_named_as_in_torchvision() -> None:
    names = resnet50(classes=2, width=4).state_dict().keys()
    assert {"conv1.weight", "layer1.0.downsample.0.weight", "layer4.2.bn3.running_mean", "fc.bias"} <= names
