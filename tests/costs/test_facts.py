from torch import nn

from fedmef.costs.facts import Layer, network_facts
from fedmef.models import build_model


def test_the_facts_of_a_network_that_fits_in_the_head() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, bias=False),
        nn.BatchNorm2d(2),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 4, 1),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    facts = network_facts(network, (1, 4, 4))
    assert facts.layers == {
        "0": Layer((2, 1, 3, 3), positions=16, inputs=16, sparse=False, pruned_input=False),
        "3": Layer((4, 2, 1, 1), positions=4, inputs=8, sparse=True, pruned_input=True),
        "5": Layer((3, 16), positions=1, inputs=16, sparse=False, pruned_input=False),
    }
    assert facts.other_parameters == 4 + 4 + 3  # BatchNorm, and the two biases
    assert facts.parameters == 18 + 8 + 48 + 11
    assert facts.multiply_adds == 18 * 16 + 8 * 4 + 48
    assert facts.pooled == 32
    assert facts.activations == 16 + 8 + 32
    assert (facts.layers["3"].rows, facts.layers["3"].columns) == (4, 2)


def test_depthwise_convolutions_stay_dense_but_their_inputs_are_pruned() -> None:
    facts = network_facts(build_model("mobilenet_v2", classes=10, channels=3, width=8, seed=0), (3, 32, 32))
    depthwise = [layer for layer in facts.layers.values() if layer.shape[1] == 1]
    assert len(depthwise) == 17
    assert not any(layer.sparse for layer in depthwise)
    assert all(layer.pruned_input for layer in depthwise)


def test_resnet18_has_the_parameters_of_the_papers_exchange() -> None:
    facts = network_facts(build_model("resnet18", classes=10, channels=3, seed=0), (3, 32, 32))
    assert facts.parameters == 11_173_962
    assert sum(layer.size for layer in facts.layers.values() if layer.sparse) == 11_157_504
