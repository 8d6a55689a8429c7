import torch
from torch import nn

from fedmef.costs.peak import peak_of_step

SIDE = 64


def test_the_peak_of_a_network_that_fits_in_the_head() -> None:
    # 4 channels of 64 x 64 pixels, four bytes each, are 65,536 bytes; weights are next to nothing.
    network = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(4 * SIDE**2, 2))
    images = torch.zeros(2, 4, SIDE, SIDE)
    classifier = 2 * 4 * SIDE**2 * 4
    features = 2 * 65_536
    peak = peak_of_step(network, images)
    # At least: weights and gradients of the classifier, both features, and the gradient of the last one.
    assert 2 * classifier + 3 * features <= peak < 2 * classifier + 3 * features + 150_000


def test_the_network_stays_as_it_is() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 2))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    peak_of_step(network, torch.randn(4, 1, 8, 8))
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
