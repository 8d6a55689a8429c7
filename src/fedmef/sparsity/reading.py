"""Frozen dataclasses to and from JSON: every field's type is checked, nothing is converted or guessed.

For data that comes from outside to a device, where pydantic would take more memory than the data.
"""

import re
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedmef.errors import NetworkError

Data = TypeVar("Data")

LONGEST_TEXT = 1000
LARGEST_INTEGER = 2**53
MOST_ITEMS = 10_000
_HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")  # JSON can have one, but no message, file or terminal


def write_fields(data: Any) -> dict[str, Any]:
    """A dataclass as JSON-able values, without the fields that have their default."""
    table, hints = {}, _hints(type(data))  # type: ignore[arg-type]
    for field in fields(data):
        value = getattr(data, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if value != default:
            table[field.name] = _written(hints[field.name], value)
    return table


def read_fields(kind: type[Data], table: Any) -> Data:
    """The inverse of `write_fields`; raises `NetworkError` for anything else."""
    if not isinstance(table, dict):
        raise NetworkError(f"{kind.__name__} must be a table")
    hints = _hints(kind)  # type: ignore[arg-type]
    if unknown := table.keys() - hints.keys():
        raise NetworkError(f"{kind.__name__} has no {_shown(min(unknown))}")
    values = {
        name: read_value(hints[name], value, f"{kind.__name__}.{name}") for name, value in table.items()
    }
    try:
        return kind(**values)
    except TypeError:
        missing = sorted(hints.keys() - values.keys())
        raise NetworkError(f"{kind.__name__} lacks one of {', '.join(missing)}") from None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


def _written(hint: Any, value: Any) -> Any:
    """As it will be read: a whole number where a fraction may be is one too, or hashes would differ."""
    arguments = [argument for argument in get_args(hint) if argument is not NoneType]
    if is_dataclass(value):
        return write_fields(value)
    if isinstance(value, dict):
        return {name: _written(arguments[1], item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_written(float if float in arguments else Any, item) for item in value]
    return float(value) if float in (hint, *arguments) and isinstance(value, int) else value


def read_value(hint: Any, value: Any, place: str) -> Any:  # noqa: PLR0911
    """A value of this type; `place` is for the error."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return read_value(inner, value, place)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise _wrong(place, value)
        return value
    if origin is tuple:
        if not isinstance(value, list) or len(value) > MOST_ITEMS:
            raise _wrong(place, value)
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(kinds) != len(value):
            raise _wrong(place, value)
        return tuple(read_value(kind, item, place) for kind, item in zip(kinds, value, strict=True))
    if origin is dict:
        if not isinstance(value, dict) or len(value) > MOST_ITEMS:
            raise _wrong(place, value)
        return {
            read_value(str, name, place): read_value(arguments[1], item, place)
            for name, item in value.items()
        }
    if isinstance(hint, type) and is_dataclass(hint):
        return read_fields(hint, value)
    return _read_plain(hint, value, place)


def _read_plain(hint: Any, value: Any, place: str) -> Any:
    if hint is float and type(value) in (int, float) and abs(value) < 1e38:  # NaN is below nothing
        return float(value)
    if hint is int and type(value) is int and 0 <= value <= LARGEST_INTEGER:
        return value
    if hint is bool and type(value) is bool:
        return value
    if hint is str and _is_text(value):
        return value
    raise _wrong(place, value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_TEXT and not _HALF_A_CHARACTER.search(value)


def _wrong(place: str, value: Any) -> NetworkError:
    return NetworkError(f"{place} cannot be {_shown(value)}")


def _shown(value: Any) -> str:
    """Of brackets in brackets only that: showing them may go deeper than reading them did."""
    return f"a {type(value).__name__}" if isinstance(value, list | dict) else ascii(value)[:80]
