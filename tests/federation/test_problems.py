"""A run that diverges or learns nothing says so."""

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import fedmef
from fedmef.data import Dataset, Split
from fedmef.data.synthetic import SyntheticImages
from fedmef.errors import FedmefError
from fedmef.federation.evaluation import Score, constant_guess
from tests.federation.small import TINY

METHODS = ["fedavg", "fedtiny", "fedmef"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rate", [100.0, 1e20])
def test_a_rate_that_is_far_too_large_diverges(method: str, rate: float, tmp_path: Path) -> None:
    """The run ends with a word about it, or stops with one."""
    experiment = fedmef.Experiment(**{**TINY, "method": method, "learning_rate": rate, "rounds": 3})
    try:
        problem = fedmef.run(experiment, tmp_path / "run").summary.problem
    except FedmefError as error:
        problem = str(error)
    assert "diverged" in problem or "learned nothing" in problem or "lower learning_rate" in problem


@pytest.mark.parametrize("method", METHODS)
def test_images_that_are_all_alike_teach_nothing(method: str, tmp_path: Path) -> None:
    made = SyntheticImages(shape=(3, 8, 8), train=160, test=40).make()
    train, test = (Split(np.full_like(split.images, 128), split.labels) for split in (made.train, made.test))
    dataset = Dataset("grey", train, test, made.classes)
    experiment = fedmef.Experiment(**{**TINY, "method": method, "rounds": 3})
    assert "learned nothing" in fedmef.run(experiment, tmp_path / "run", dataset=dataset).summary.problem


def dead(classes: int, channels: int) -> nn.Module:
    """Nothing comes through its second convolution."""
    middle = nn.Conv2d(4, 4, 3, bias=False)
    nn.init.zeros_(middle.weight)
    layers = [nn.Conv2d(channels, 4, 3), nn.ReLU(), middle, nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


@pytest.mark.parametrize("method", METHODS)
def test_a_dead_network_is_named_before_and_after(method: str, tmp_path: Path) -> None:
    experiment = fedmef.Experiment(
        **{**TINY, "method": method, "rounds": 2, "width": None, "model": f"{__name__}:dead"}
    )
    with pytest.warns(UserWarning, match="will hardly learn: '2' gives 0 for every image"):
        finished = fedmef.run(experiment, tmp_path / "run")
    assert "learned nothing" in finished.summary.problem


def test_a_run_that_learns_has_no_problem(tmp_path: Path) -> None:
    experiment = fedmef.Experiment(**{**TINY, "rounds": 3, "local_epochs": 4, "learning_rate": 0.5})
    assert fedmef.run(experiment, tmp_path / "run").summary.problem == ""


def test_a_constant_guess_by_hand() -> None:
    images = np.zeros((4, 1, 2, 2), dtype=np.uint8)
    assert constant_guess(Split(images, np.array([0, 0, 2, 2]))) == Score(0.5, float(np.log(2)))
    assert constant_guess(Split(images, np.array([1, 1, 1, 0]))).accuracy == 0.75
