"""`fedmef.run` takes experiments, files and loose settings; names, classes, functions and data."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import fedmef
from fedmef.data import Dataset, load_dataset
from fedmef.errors import UserError
from fedmef.experiment.files import to_toml
from fedmef.experiment.settings import Experiment
from fedmef.federation.arguments import experiment_of, name_of
from fedmef.methods.fedtiny import FedTiny
from tests.federation.small import SMALL, digest

PARTS = {"model": None, "method": None, "dataset": None}


class Mine(FedTiny):
    """A method of the user's own."""


def network(classes: int, channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, classes),
    )


def digits() -> Dataset:
    return load_dataset("digits")


def test_settings_a_file_and_an_experiment_mean_the_same(tmp_path: Path) -> None:
    experiment = Experiment(method="fedtiny", rounds=7)
    (tmp_path / "mine.toml").write_text(to_toml(experiment))
    given: list[tuple[Any, dict[str, Any]]] = [
        (experiment, {}),
        (None, {"method": "fedtiny", "rounds": 7}),
        (tmp_path / "mine.toml", {}),
        (str(tmp_path / "mine.toml"), {}),
        (Experiment(method="fedtiny", rounds=3), {"rounds": 7}),
        (Experiment(rounds=7), {"method": FedTiny}),
    ]
    for first, settings in given:
        parts = {**PARTS, "method": settings.pop("method", None)}
        assert experiment_of(first, settings, parts) == experiment


def test_classes_and_functions_are_as_good_as_names(tmp_path: Path) -> None:
    small = {**SMALL, "rounds": 1, "width": None}
    objects = fedmef.run(out=tmp_path / "a", model=network, method=Mine, dataset=digits, **small)
    here = "tests.federation.test_arguments"
    assert (objects.experiment.model, objects.experiment.method) == (f"{here}:network", f"{here}:Mine")
    names = fedmef.run(
        out=tmp_path / "b", model=f"{here}:network", method=f"{here}:Mine", dataset=f"{here}:digits", **small
    )
    opened = fedmef.run(out=tmp_path / "c", model=network, method=Mine, dataset=digits(), **small)
    assert digest(objects.path) == digest(names.path) == digest(opened.path)
    assert opened.experiment.dataset == "digits"


def test_a_method_of_ours_has_its_own_name() -> None:
    assert name_of("method", FedTiny) == "fedtiny"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"experiment": 7}, "give a fedmef.Experiment, the path of a TOML file, or settings"),
        ({"experiment": {"rounds": 3}}, "give a fedmef.Experiment"),
        ({"experiment": "nowhere.toml"}, "there is no configuration file nowhere.toml"),
        ({"round": 3}, "round"),
        ({"rounds": "three"}, "rounds = 'three'"),
        ({"model": nn.Linear(2, 2)}, "give a name, a class or a function"),
        ({"model": lambda classes, channels: nn.Linear(2, 2)}, "top level of a module"),
        ({"model": 3}, "give a name, a class or a function"),
        ({"method": "nonsense"}, "nonsense"),
        ({"method": network}, "must be a subclass of fedmef.methods.Method"),
        ({"dataset": 3}, "give a fedmef.data.Dataset, a name, or a function"),
        ({"dataset": [1, 2]}, "give a fedmef.data.Dataset"),
        ({"dataset": "mnist3"}, "mnist3"),
    ],
)
def test_wrong_arguments_are_named_with_the_remedy(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        fedmef.run(out=tmp_path / "run", **{**SMALL, "rounds": 1, **arguments})
    assert not (tmp_path / "run").exists()
