"""What is wrong with an experiment shows before anything is written, or even opened."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmef
from fedmef.data import Dataset, load_dataset
from fedmef.errors import UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.preparation import check_names, open_dataset, prepare
from fedmef.sparsity.model import check_state
from tests.federation.small import SMALL, TINY

OWN = "tests.federation.own_parts"


def test_an_experiment_gets_its_data_and_its_first_model() -> None:
    prepared = prepare(Experiment(**TINY))
    network = prepared.model.network
    assert prepared.dataset.name == "synthetic"
    assert network.input.shape == prepared.dataset.shape == (3, 8, 8)
    assert (network.input.mean, network.input.std) == prepared.dataset.statistics
    assert network.classes == 10
    check_state(network, prepared.model.state)


def test_the_same_experiment_gives_the_same_model_and_another_seed_another() -> None:
    one, again, other = (
        prepare(Experiment(**TINY, seed=seed), load_dataset("digits")).model for seed in (3, 3, 4)
    )
    assert one.network == again.network
    assert all(np.array_equal(one.state[name], again.state[name]) for name in one.state)
    assert not all(np.array_equal(one.state[name], other.state[name]) for name in one.state)


def test_data_that_are_open_already_are_not_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_dataset("digits")

    def refuse(*_: object, **__: object) -> Dataset:
        raise AssertionError

    monkeypatch.setattr("fedmef.federation.preparation.load_dataset", refuse)
    assert prepare(Experiment(**SMALL), data).dataset is data


def test_synthetic_data_are_as_large_as_the_experiment_says() -> None:
    data = open_dataset(Experiment(**TINY))
    assert (len(data.train), len(data.test)) == (160, 40)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"method": "fedmeff"}, "unknown method 'fedmeff': did you mean 'fedmef'"),
        ({"method": f"{OWN}:own_network"}, "must be a subclass of"),
        ({"method": f"{OWN}:Nobody"}, "has no 'Nobody'"),
        ({"model": "resnet19"}, "unknown model 'resnet19'"),
        ({"model": "no_such_module:network"}, "there is no module 'no_such_module'"),
        ({"accelerator": "tpu"}, "accelerator = 'tpu': must be cpu, cuda or cuda:N"),
        ({"backend": "native", "method": "prunefl"}, "backend = 'native' and method = 'prunefl'"),
    ],
)
def test_a_name_that_is_not_there_is_told_before_data_are_opened(
    settings: dict[str, Any], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Dataset:
        raise AssertionError

    monkeypatch.setattr("fedmef.federation.preparation.load_dataset", refuse)
    experiment = Experiment(**{**SMALL, "width": None, **settings})
    with pytest.raises(UserError, match=complaint):
        check_names(experiment)
    with pytest.raises(UserError, match=complaint):
        fedmef.run(experiment, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("network", "expected"), [("few_answers", "answers"), ("small_input", "cannot take images of shape")]
)
def test_a_network_that_does_not_fit_the_data_is_refused_before_anything_is_written(
    tmp_path: Path, network: str, expected: str
) -> None:
    experiment = Experiment(**{**SMALL, "width": None}, method="fedavg", model=f"{OWN}:{network}")
    with pytest.raises(UserError, match=expected):
        fedmef.run(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
