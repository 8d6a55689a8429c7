"""The small network of the digits demo."""

import torch

from fedmef.models.small_cnn import small_cnn


def test_its_size_can_be_counted_by_hand() -> None:
    # width 2: convolutions 2·1·9 + 4·2·9 + 8·4·9, batch norms 2·(2 + 4 + 8), classifier 8·3 + 3
    network = small_cnn(classes=3, width=2)
    assert sum(parameter.numel() for parameter in network.parameters()) == 18 + 72 + 288 + 28 + 27


def test_it_takes_images_of_any_size() -> None:
    network = small_cnn(classes=10, channels=3, width=3)
    assert network(torch.zeros(2, 3, 8, 8)).shape == (2, 10)
    assert network(torch.zeros(2, 3, 33, 17)).shape == (2, 10)
