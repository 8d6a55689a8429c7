"""Command-line options for every setting of an experiment, made from its fields: one place to add one."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from fedmef.experiment.settings import Experiment

# The first field of each group in the help text.
PANELS = {
    "method": "What to train",
    "devices": "Federation",
    "local_epochs": "Local training",
    "sparsity": "Sparsity",
    "adjust_every": "Adjustment of masks",
    "deadline": "Devices that fail",
    "aggregation": "Robust and private aggregation",
    "faults": "Injected faults",
    "wire_scheme": "Messages",
    "evaluate_every": "Evaluation and machine",
    "synthetic_size": "The synthetic data set",
}

METAVARS = {"device_memory": "SIZE", "metrics": "NAME=MODULE:FUNCTION"} | dict.fromkeys(
    ("skip", "keep_dense", "first_layers", "last_layers"), "NAMES"
)

FLAGS = {"metrics": "--metric"}  # given once for each


def with_experiment_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for every field; the command gets those that were given as `overrides`.

    Values stay text: the experiment itself checks them, so that a file and an option give the same errors.
    """
    signature = inspect.signature(command)
    own = [parameter for name, parameter in signature.parameters.items() if name != "overrides"]
    panel, options = "", []
    for name, field in Experiment.model_fields.items():
        panel = PANELS.get(name, panel)
        options.append(_option(name, field, panel))

    @wraps(command)
    def wrapped(**arguments: Any) -> None:
        overrides = {name: arguments.pop(name) for name in Experiment.model_fields}
        given = {name: value for name, value in overrides.items() if value not in (None, [])}
        command(overrides=given, **arguments)

    wrapped.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *options]}
    return wrapped


def _option(name: str, field: Any, panel: str) -> inspect.Parameter:
    default, about = field.default, field.description
    flag = FLAGS.get(name) or f"--{name.replace('_', '-')}"
    information = typer.Option(
        f"{flag}/--no-{flag[2:]}" if isinstance(default, bool) else flag,
        help=about if default in (None, "", ()) else f"{about.removesuffix('.')} (default {default}).",
        rich_help_panel=panel,
        show_default=False,
        metavar=None if isinstance(default, bool) else METAVARS.get(name) or _metavar(field.annotation),
    )
    kind = bool if isinstance(default, bool) else list[str] if name in FLAGS else str
    annotation = Annotated[kind | None, information]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _metavar(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    return {"int": "N", "float": "X", "Path": "DIR"}.get(kinds[0].__name__, "NAME")
