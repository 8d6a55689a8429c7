"""BatchNorm's statistics made anew: those of the training images, whatever was there before."""

import numpy as np
import pytest
import torch
from torch import nn

from fedmef.data import SyntheticImages
from scripts import batch_norm_statistics
from scripts.batch_norm_statistics import accuracy, make_statistics


class Pixels(nn.Module):
    """Two classes, by the sign of a normalised mean pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean = self.norm(images.float().mean((1, 2, 3))[:, None])
        return torch.cat([mean, -mean], 1)


class AlwaysFirst(nn.Module):
    """Says class 0."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.eye(10)[torch.zeros(len(images), dtype=torch.int64)]


def test_statistics_are_those_of_the_images_and_a_network_without_any_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_norm_statistics, "IMAGES", 40)
    monkeypatch.setattr(batch_norm_statistics, "BATCH", 20)
    dataset = SyntheticImages((3, 8, 8), train=40, test=20).make()
    model = Pixels()
    model.norm.get_buffer("running_mean").fill_(1e6)
    assert make_statistics(model, dataset)
    means = np.asarray(dataset.train.images, dtype=np.float64).mean((1, 2, 3))
    assert model.norm.get_buffer("running_mean").item() == pytest.approx(means.mean(), rel=1e-4)
    assert not make_statistics(nn.Linear(2, 2), dataset)


def test_accuracy_counts_the_test_images_that_are_right() -> None:
    dataset = SyntheticImages((3, 8, 8), train=40, test=20).make()
    assert accuracy(AlwaysFirst(), dataset) == pytest.approx(100 * float((dataset.test.labels == 0).mean()))
