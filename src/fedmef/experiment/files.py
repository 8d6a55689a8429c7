"""Experiments as TOML files, and what a resumed run may change."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmef.errors import UserError
from fedmef.experiment.settings import MACHINE_FIELDS, Experiment, make_experiment
from fedmef.wire.files import read_bounded

MAXIMUM_CONFIG_BYTES = 2**20
MOST_SIGNS = 1000

# Besides where and how it runs: how long it runs, and what happens to a round in which devices fail.
RESUMABLE_FIELDS = MACHINE_FIELDS | {"rounds", "min_devices", "round_attempts"}


def read_experiment(path: Path, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """An experiment from a TOML file, with some fields overridden."""
    try:
        content = read_bounded(path, MAXIMUM_CONFIG_BYTES)
    except FileNotFoundError:
        raise UserError(
            f"there is no configuration file {path}: name an experiment's TOML file, or give settings as "
            "options (a switch such as --augment takes no value)"
        ) from None
    except IsADirectoryError:
        raise UserError(
            f"{path} is a folder: name an experiment's TOML file; "
            f"`fedmef run --resume {path}` continues a run"
        ) from None
    except OSError as error:
        raise UserError(f"{path} is not a readable TOML file: {error.strerror or error}") from None
    return parse_experiment(content, path, overrides)


def parse_experiment(content: bytes, path: Path, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """The same from the content of the file `path`, which may be anybody's."""
    # An experiment is flat. Deep nesting, and keys of many parts, cost more time than they have bytes.
    if any(content.count(sign) > MOST_SIGNS for sign in (b".", b"[", b"{")):
        raise UserError(f"{path} is not an experiment: it has more than {MOST_SIGNS} dots or brackets")
    try:
        values = tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a readable TOML file: it is not text in UTF-8 ({error})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not a readable TOML file: {str(error)[:MOST_SIGNS]}; write a line for each setting, "
            'such as rounds = 10 or method = "fedmef"'
        ) from None
    if tables := [name for name, value in values.items() if isinstance(value, dict) and name != "metrics"]:
        raise UserError(f"{path}: an experiment has no tables; leave [{tables[0]}] out, its settings stay")
    try:
        return make_experiment({**values, **(overrides or {})})
    except RecursionError:
        raise UserError(f"{path} is not an experiment: it is nested too deep") from None
    except UserError as error:
        raise UserError(f"{path}{' and the options' if overrides else ''}: {error}") from None


def to_toml(experiment: Experiment) -> str:
    """The experiment as a configuration file that repeats it."""
    values = experiment.model_dump(mode="json").items()
    return "".join(f"{name} = {_toml_value(value)}\n" for name, value in values if value is not None)


def resumed_experiment(there: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """The experiment to resume with; raises `UserError` that names every change that is not allowed.

    The schedule of adjustments stays what it was: by default it follows from the number of rounds.
    """
    given = {name: value for name, value in changes.items() if name != "adjust_until" or value is not None}
    asked = make_experiment({**there.model_dump(), **given})
    if different := changed_fields(there, asked, RESUMABLE_FIELDS):
        raise UserError(
            f"a resumed run keeps its own experiment, but {'; '.join(different)}; leave that out, or start "
            f"another run (only {', '.join(sorted(RESUMABLE_FIELDS))} may change)"
        )
    if asked.rounds != there.rounds and there.rate_schedule == "cosine":
        raise UserError(
            f"rounds = {there.rounds} there, {asked.rounds} here: with rate_schedule = 'cosine' the last "
            "round decides every learning rate; start another run"
        )
    if asked.rounds != there.rounds and there.adjust_until is None:
        asked = asked.model_copy(update={"adjust_until": there.last_adjustment})
    return asked


def changed_fields(there: Experiment, asked: Experiment, allowed: frozenset[str]) -> list[str]:
    """`sparsity = 0.9 there, 0.5 here` for every field that differs and may not."""
    old, new = there.model_dump(), asked.model_dump()
    return [
        f"{field} = {old[field]} there, {new[field]} here"
        for field in new
        if field not in allowed and old[field] != new[field]
    ]


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(part) for part in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
