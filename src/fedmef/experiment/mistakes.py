"""What is wrong with settings, in plain words."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedmef.errors import UserError, nearest

LONGEST_SHOWN = 200
# pydantic's own words, said more plainly.
PLAINLY = {
    "bool_parsing": "must be true or false",
    "byte_size": "say it as 64MB, 64MiB or a number of bytes",
    "byte_size_unit": "say it as 64MB, 64MiB or a number of bytes",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "string_type": "must be a text in quotes",
}
NUMBERS = {"int": "a whole number", "float": "a number"}


def unknown_setting(name: str, fields: Mapping[str, FieldInfo]) -> UserError:
    """The error for a setting that is not there, with the nearest one."""
    near = nearest(name, fields)
    return UserError(
        f"unknown setting '{name}': "
        + (f"did you mean '{near}'?" if near else "`fedmef run --help` lists them as options")
    )


def explained(error: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """Each wrong field, its value and what it must be."""
    return "; ".join(_explain(detail, fields) for detail in error.errors())


def _explain(detail: Any, fields: Mapping[str, FieldInfo]) -> str:
    message = str(detail["msg"]).removeprefix("Value error, ")
    if not detail["loc"]:
        return message
    field, (kind, _, problem) = str(detail["loc"][0]), detail["type"].partition("_")
    if detail["type"] in PLAINLY:
        facts = {
            name: f"{value:.10g}" if isinstance(value, float) else value
            for name, value in detail.get("ctx", {}).items()
        }
        message = PLAINLY[detail["type"]].format(**facts)
    elif kind in NUMBERS and problem in ("parsing", "type", "from_float"):
        default = fields[field].default
        message = f"must be {NUMBERS[kind]}{'' if default is None else f', such as {default}'}"
    return f"{field} = {_shortened(repr(detail['input']))}: {message[0].lower()}{message[1:]}"


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
