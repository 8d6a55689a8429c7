"""What `fedmef.run` takes: an experiment, its file, or loose settings; parts by name, or as they are."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedmef.data import Dataset
from fedmef.errors import UserError
from fedmef.experiment.files import read_experiment
from fedmef.experiment.names import load_object
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.methods import METHODS, Method, find_builtin_method

Part = str | Callable[..., Any]  # a name, or a class or function


def experiment_of(
    given: Experiment | Path | str | None, settings: Mapping[str, Any], parts: Mapping[str, Any]
) -> Experiment:
    """The experiment that a user means; settings and parts come before what is given.

    Args:
        given: an experiment, or the TOML file of one.
        settings: some of its fields.
        parts: model, method, loss, metrics and dataset, as names or as what has such a name; None: not given.
    """
    named = {kind: _named(kind, part) for kind, part in parts.items() if part is not None}
    changes = {**settings, **named}
    if given is None:
        return make_experiment(changes)
    if isinstance(given, str | Path):
        return read_experiment(Path(given), changes)
    if not isinstance(given, Experiment):
        raise UserError(
            f"experiment = {_shown(given)}: give a fedmef.Experiment, the path of a TOML file, or settings "
            "such as fedmef.run(rounds=10)"
        )
    return make_experiment({**given.model_dump(exclude_unset=True), **changes}) if changes else given


def name_of(kind: str, part: object) -> str:
    """The name under which other processes find a class or a function."""
    if isinstance(part, str):
        return part
    if isinstance(part, type) and issubclass(part, Method):
        for known, (_, class_name) in METHODS.items():
            if class_name == part.__name__ and find_builtin_method(known) is part:
                return known
    module, name = (getattr(part, attribute, None) for attribute in ("__module__", "__qualname__"))
    if not callable(part) or module is None or name is None:
        raise UserError(
            f"{kind} = {_shown(part)}: give a name, a class or a function (an object that can be called: by "
            "its name, module:name)"
        )
    path = f"{module}:{name}"
    if "<" in name or load_object(kind, path) is not part:
        raise UserError(
            f"{kind} = {_shown(part)}: worker processes find it by its name, '{path}', and that is not it; "
            "define it at the top level of a module"
        )
    return path


def _named(kind: str, part: object) -> object:
    """As the experiment has it: a name, or for metrics a table of them."""
    if kind != "metrics":
        return name_of(kind, part)
    if not isinstance(part, Mapping):
        raise UserError(f"metrics = {_shown(part)}: give a table, such as {{'top5': my_function}}")
    return {name: name_of(f"metric {name}", function) for name, function in part.items()}


def as_dataset(dataset: object) -> Dataset | None:
    """An open data set, or None for one that is named."""
    if dataset is None or isinstance(dataset, Dataset):
        return dataset
    if isinstance(dataset, str) or callable(dataset):
        return None
    raise UserError(
        f"dataset = {_shown(dataset)}: give a fedmef.data.Dataset, a name, or a function that gives one"
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
