"""A device's step, measured in a process of its own."""

import gc
import weakref
from pathlib import Path

import pytest

from fedmef.costs.step import measure_device_memory, measure_step
from fedmef.device.resident import baseline_resident
from fedmef.errors import FedmefError, SparsityError, UserError
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


def test_a_step_of_the_digits_network() -> None:
    experiment = Experiment(width=8, batch_size=128)
    cost = measure_step(experiment, (1, 28, 28), 10)
    state = cost.parameters + cost.gradients
    batch = 128 * 28 * 28 * 4
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


def test_a_sparsity_that_starves_a_layer_is_told_from_other_mistakes() -> None:
    with pytest.raises(SparsityError, match=r"sparsity = 0\.999"):
        measure_device_memory(Experiment(sparsity=0.999, width=4), (1, 8, 8), 10)
    with pytest.raises(UserError) as other:
        measure_device_memory(Experiment(), (1, 1, 1), 10)
    assert not isinstance(other.value, SparsityError)


def test_a_process_that_dies_is_a_failure_and_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text("import os\n\ndef network(classes, channels):\n    os._exit(9)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedmefError, match="ended with 9: killed") as died:
        measure_device_memory(Experiment(model="deadly:network"), (1, 8, 8), 10)
    assert not isinstance(died.value, UserError)


def test_the_resident_peak_of_a_dense_network_is_no_less_than_that_of_its_tensors() -> None:
    cost = measure_step(Experiment(method="fedavg", model="resnet18", batch_size=2), (3, 32, 32), 10, steps=2)
    assert cost.peak_resident > 0.95 * cost.peak


def test_garbage_goes_before_counting_begins() -> None:
    """A traced module lies in cycles: if it went during training, its bytes would be missing in the peak."""

    class Cycle:
        def __init__(self) -> None:
            self.own = self

    gc.disable()
    try:
        gone = weakref.ref(Cycle())
        assert gone() is not None
        baseline_resident()
    finally:
        gc.enable()
    assert gone() is None
