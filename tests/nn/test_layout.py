"""The layout that networks compute in."""

import pytest
import torch

from fedmef.models import build_model
from fedmef.nn.export import export_network
from fedmef.nn.layout import fastest_layout
from fedmef.nn.module import NetworkModule
from fedmef.sparsity.network import Input


@pytest.mark.parametrize("channels", [[], [8], [64, 128]])
def test_channels_last_is_the_usual_layout(channels: list[int]) -> None:
    assert fastest_layout(channels) == torch.channels_last


def test_a_narrow_strided_shortcut_keeps_the_default_layout() -> None:
    assert fastest_layout([64, 4]) == torch.contiguous_format


@pytest.mark.parametrize(("width", "layout"), [(4, torch.contiguous_format), (8, torch.channels_last)])
def test_a_resnet_and_its_network_choose_by_their_width(width: int, layout: torch.memory_format) -> None:
    model = build_model("resnet18", classes=10, channels=3, width=width, stem="cifar", seed=0)
    network = export_network(model, Input((3, 8, 8), (0.5,) * 3, (0.5,) * 3))
    assert model.layout == NetworkModule(network).layout == layout
