"""A device's step, measured in a process of its own."""

from pathlib import Path

import pytest
import torch

from fedmef.costs import measure_device_memory, measure_step, peak_of_tensors
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment

OWN_MODEL = """
from torch import nn

print("a model that talks")

def network(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes),
    )
"""


def test_the_peak_of_tensors_by_hand() -> None:
    def build() -> torch.Tensor:
        torch.empty(10_000)  # gone before the work begins
        return torch.empty(100)

    def work(built: torch.Tensor) -> None:
        first = torch.empty(300)
        del first
        torch.empty(200), torch.empty(250)

    assert peak_of_tensors(build, work) == 4 * (100 + 200 + 250)


def test_a_step_of_the_digits_network() -> None:
    experiment = Experiment(width=8, batch_size=128)
    cost = measure_step(experiment, (1, 28, 28), 10)
    state = cost.parameters + cost.gradients + cost.optimizer
    batch = 128 * 28 * 28 * 4
    assert cost.optimizer == 0  # plain SGD
    assert 0 < cost.gradients < cost.parameters  # masks have none
    assert cost.cache > 0
    assert cost.peak > state + batch
    assert cost.peak > cost.cache
    assert cost.peak_resident > 0.5 * cost.peak
    assert cost.seconds > 0


def test_a_method_that_never_adjusts_is_measured_too() -> None:
    assert measure_device_memory(Experiment(method="fedavg", width=8, batch_size=64), (1, 28, 28), 10) > 0


def test_one_step_has_no_time() -> None:
    with pytest.raises(UserError, match="steps = 1"):
        measure_step(Experiment(), (1, 8, 8), 10, steps=1)


def test_a_users_own_network_is_found_and_its_mistakes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    experiment = Experiment(model="mine:network", method="fedavg", batch_size=8)
    cost = measure_step(experiment, (3, 8, 8), 4, steps=2)
    parameters = 3 * 8 * 9 + 8 + 8 * 8 * 9 + 8 + 8 * 4 + 4
    assert (cost.parameters, cost.gradients) == (4 * parameters, 4 * parameters)
    with pytest.raises(UserError, match="no module 'theirs'"):
        measure_step(Experiment(model="theirs:network"), (3, 8, 8), 4)
