"""Weights, multiply-adds and activations of a network, as PyTorch counts them and by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedmef.costs.facts import LayerFacts, MultiplyAdds, multiply_adds, network_facts
from fedmef.experiment.settings import make_experiment
from fedmef.models import build_model
from fedmef.models.initial import initial_model, plain_network
from fedmef.nn import sparsify
from fedmef.nn.export import export_network, module_state
from fedmef.sparsity.model import Model
from fedmef.sparsity.network import Input, Network

Shape = tuple[int, int, int]


def exported(module: nn.Module, shape: Shape) -> Network:
    return export_network(module, Input(shape, (0.5,) * shape[0], (0.5,) * shape[0]))


class OddNetwork(nn.Module):
    """Strides, dilation, groups, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, (3, 1), stride=(2, 1), padding=1)
        self.twice = nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=3, bias=False)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.last = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        features = torch.relu(self.first(images))
        features = torch.relu(self.twice(torch.relu(self.twice(features))))
        answers: Tensor = self.last(torch.flatten(self.pool(features), 1))
        return answers


def pytorch_count(module: nn.Module, shape: Shape) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module.eval()(torch.zeros(1, *shape))
    return int(counter.get_total_flops()) // 2  # it counts a multiplication and an addition


def test_the_facts_of_a_network_that_fits_in_the_head() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, bias=False),
        nn.BatchNorm2d(2),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 4, 1),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    facts = network_facts(exported(module, (1, 4, 4)))
    assert facts.layers == {
        "0": LayerFacts((2, 1, 3, 3), positions=16, inputs=16, sparse=False, pruned_input=False),
        "3": LayerFacts((4, 2, 1, 1), positions=4, inputs=8, sparse=True, pruned_input=True),
        "5": LayerFacts((3, 16), positions=1, inputs=16, sparse=False, pruned_input=False),
    }
    assert facts.other_parameters == 4 + 4 + 3  # BatchNorm, and the two biases
    assert facts.parameters == 18 + 8 + 48 + 11
    assert facts.multiply_adds == 18 * 16 + 8 * 4 + 48
    assert facts.pooled == 32
    assert facts.activations == 16 + 8 + 32
    assert (facts.layers["3"].rows, facts.layers["3"].columns) == (4, 2)


def test_depthwise_convolutions_stay_dense_but_their_inputs_are_pruned() -> None:
    experiment = make_experiment({"model": "mobilenet_v2", "width": 8})
    facts = network_facts(plain_network(experiment, (3, 32, 32), 10))
    depthwise = [layer for layer in facts.layers.values() if layer.shape[1] == 1]
    assert len(depthwise) == 17
    assert not any(layer.sparse for layer in depthwise)
    assert all(layer.pruned_input for layer in depthwise)


def test_resnet18_has_the_parameters_and_the_multiply_adds_of_the_paper() -> None:
    facts = network_facts(plain_network(make_experiment({"model": "resnet18"}), (3, 32, 32), 10))
    assert facts.parameters == 11_173_962
    assert sum(layer.size for layer in facts.layers.values() if layer.sparse) == 11_157_504
    assert round(facts.multiply_adds / 1e6, 2) == 555.42


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"model": "resnet18", "stem": "cifar"}, (3, 32, 32)),
        ({"model": "resnet18", "stem": "imagenet"}, (3, 32, 32)),
        ({"model": "mobilenet_v2"}, (3, 32, 32)),
        ({"model": "small_cnn"}, (1, 9, 7)),
    ],
)
def test_counts_agree_with_pytorchs_own(settings: dict[str, Any], shape: Shape) -> None:
    module = build_model(
        settings["model"], classes=10, channels=shape[0], stem=settings.get("stem", "cifar"), seed=0
    )
    network = plain_network(make_experiment(settings), shape, 10)
    assert network_facts(network).multiply_adds == pytorch_count(module, shape)
    assert network_facts(network).parameters == sum(parameter.numel() for parameter in module.parameters())


def test_counts_of_a_users_odd_network_agree_with_pytorchs_own() -> None:
    module = OddNetwork()
    facts = network_facts(exported(module, (2, 11, 8)))
    assert facts.multiply_adds == pytorch_count(module, (2, 11, 8))
    assert facts.parameters == sum(parameter.numel() for parameter in module.parameters())


def test_a_sparse_layer_counts_its_active_weights_and_what_it_would_take_dense() -> None:
    plain = nn.Sequential(
        nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, 10, 1), nn.ReLU(), nn.Flatten(), nn.Linear(40, 1)
    )
    module = sparsify(plain, sparsity=0.5, activation_sparsity=0.5)
    network = exported(module, (1, 2, 2))
    model = Model(network, module_state(module, network))
    # 4 pixels: 8 weights, then 80 of which 40 are active, then a classifier of 40.
    assert multiply_adds(model) == MultiplyAdds(4 * 8 + 4 * 80 + 40, 4 * 8 + 4 * 40 + 40)


def test_a_dense_model_takes_the_same_either_way() -> None:
    experiment = make_experiment({"method": "fedavg", "width": 4})
    model = initial_model(experiment, (1, 8, 8), 10, ((0.5,), (0.5,)))
    facts = network_facts(plain_network(experiment, (1, 8, 8), 10))
    assert multiply_adds(model) == MultiplyAdds(facts.multiply_adds, facts.multiply_adds)


@pytest.mark.parametrize("method", ["fedavg", "fedmef", "zerofl"])
def test_preparing_a_network_changes_no_dense_count(method: str) -> None:
    experiment = make_experiment({"method": method, "model": "resnet18", "width": 8})
    model = initial_model(experiment, (3, 32, 32), 10, ((0.5,) * 3, (0.5,) * 3))
    plain = network_facts(plain_network(experiment, (3, 32, 32), 10))
    assert multiply_adds(model).dense == plain.multiply_adds
