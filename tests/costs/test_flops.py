import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedmef import sparsify
from fedmef.costs.flops import MultiplyAdds, layer_passes, multiply_adds
from fedmef.models import build_model


class OddNetwork(nn.Module):
    """Strides, dilation, groups, a layer that is used twice, and a linear layer on many positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, (3, 1), stride=(2, 1), padding=1)
        self.twice = nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=3, bias=False)
        self.mixed = nn.Linear(6, 5)
        self.last = nn.Linear(5, 4)

    def forward(self, images: Tensor) -> Tensor:
        features = torch.relu(self.first(images))
        features = torch.relu(self.twice(torch.relu(self.twice(features))))
        pixels = self.mixed(features.flatten(2).transpose(1, 2))
        answers: Tensor = self.last(pixels.mean(1))
        return answers


def pytorch_count(model: nn.Module, shape: tuple[int, int, int]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, *shape))
    return int(counter.get_total_flops()) // 2  # it counts a multiplication and an addition


@pytest.mark.parametrize(
    ("name", "stem", "shape"),
    [
        ("resnet18", "cifar", (3, 32, 32)),
        ("resnet18", "imagenet", (3, 32, 32)),
        ("mobilenet_v2", "cifar", (3, 32, 32)),
        ("small_cnn", "cifar", (1, 9, 7)),
    ],
)
def test_counts_agree_with_pytorchs_own(name: str, stem: str, shape: tuple[int, int, int]) -> None:
    model = build_model(name, classes=10, channels=shape[0], stem=stem, seed=0)
    counted = multiply_adds(model, shape)
    assert counted.dense == counted.active == pytorch_count(model, shape)


def test_counts_of_a_users_odd_network_agree_with_pytorchs_own() -> None:
    model = OddNetwork()
    assert multiply_adds(model, (2, 11, 8)).dense == pytorch_count(model, (2, 11, 8))


def test_resnet18_takes_what_the_paper_says() -> None:
    model = build_model("resnet18", classes=10, channels=3, stem="cifar", seed=0)
    assert round(multiply_adds(model, (3, 32, 32)).dense / 1e6, 2) == 555.42


def test_a_sparse_layer_counts_its_active_weights_and_what_it_would_take_dense() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 10, 1), nn.ReLU(), nn.Flatten(), nn.Linear(40, 1)
    )
    model = sparsify(network, sparsity=0.5, activation_sparsity=0.5)
    # 4 pixels: 2 weights, then 20 of which 10 are active, then a classifier of 40.
    assert multiply_adds(model, (1, 2, 2)) == MultiplyAdds(4 * 2 + 4 * 20 + 40, 4 * 2 + 4 * 10 + 40)


def test_counting_leaves_the_network_as_it_is() -> None:
    model = build_model("small_cnn", classes=10, channels=1, seed=0).train()
    model.get_submodule("classifier").eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    layer_passes(model, (1, 8, 8))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
    assert not model.get_submodule("classifier").training
    assert not any(module._forward_hooks for module in model.modules())
