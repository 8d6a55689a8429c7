from pathlib import Path

import pytest
import torch
from torch import nn

from fedmef.federation import api
from fedmef.federation.preparation import open_dataset
from fedmef.nn import BatchNorm2d
from fedmef.studies.paper.activation_histogram import IMAGES, output_statistics
from tests.small import small, write_run


def test_a_convolutions_outputs_are_what_batchnorm_makes_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convolution, norm = nn.Conv2d(1, 1, 1, bias=False), BatchNorm2d(1, eps=0.0)
    nn.init.constant_(convolution.weight, 2.0)
    norm.running_mean, norm.running_var = torch.tensor([1.0]), torch.tensor([4.0])
    last = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.constant_(last.weight, 3.0)

    class Floating(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            assert images.dtype == torch.uint8  # what a model takes that `fedmef.load` gives
            return images.float()

    model = nn.Sequential(Floating(), convolution, norm, last).eval()
    monkeypatch.setattr(api, "load", lambda path: model)
    run = write_run(tmp_path / "run", small(), [0.5])
    images = open_dataset(run.experiment).test.images[:IMAGES].astype("float32")
    first, second = output_statistics(run).values()
    assert first == pytest.approx(((2 * images.mean() - 1) / 2, images.std(ddof=1)), rel=1e-4)
    assert second == pytest.approx((3 * first[0], 3 * first[1]), rel=1e-4)
