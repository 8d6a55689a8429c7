"""JSON to dataclasses: every type is checked, nothing is converted, and only typed errors come out."""

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmef.errors import NetworkError
from fedmef.sparsity.reading import LARGEST_INTEGER, LONGEST_TEXT, MOST_ITEMS, read_fields, write_fields


@dataclass(frozen=True)
class Inner:
    share: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Everything:
    kind: ClassVar[str] = "everything"
    name: str
    count: int = 1
    rate: float = 0.5
    there: bool = False
    colour: Literal["red", "green"] = "red"
    pair: tuple[int, int] = (1, 1)
    many: tuple[str, ...] = ()
    maybe: float | None = None
    shape: tuple[int, ...] | None = (3,)
    inner: Inner = field(default_factory=Inner)
    inner_maybe: Inner | None = None
    table: dict[str, Inner] = field(default_factory=dict)


FULL = Everything(
    name="all",
    count=7,
    rate=0.25,
    there=True,
    colour="green",
    pair=(2, 3),
    many=("a", "b"),
    maybe=1.5,
    shape=None,
    inner=Inner(0.1),
    inner_maybe=Inner(0.2),
    table={"x": Inner(), "y": Inner(0.3)},
)


def through_json(data: Everything) -> Everything:
    return read_fields(Everything, json.loads(json.dumps(write_fields(data))))


@pytest.mark.parametrize("data", [FULL, Everything(name="few")])
def test_what_is_written_is_read_again(data: Everything) -> None:
    assert through_json(data) == data


def test_fields_that_have_their_default_are_not_written() -> None:
    assert write_fields(Everything(name="few", inner=Inner())) == {"name": "few"}
    assert write_fields(Everything(name="few", shape=None, pair=(1, 2))) == {
        "name": "few",
        "pair": [1, 2],
        "shape": None,
    }


def test_a_written_table_is_plain_json() -> None:
    assert write_fields(FULL)["table"] == {"x": {}, "y": {"share": 0.3}}
    assert write_fields(FULL)["many"] == ["a", "b"]


@given(
    data=st.builds(
        Everything,
        name=st.text(max_size=9),
        count=st.integers(0, LARGEST_INTEGER),
        rate=st.floats(-1e37, 1e37),
        pair=st.tuples(st.integers(0, 9), st.integers(0, 9)),
        many=st.lists(st.text(max_size=5), max_size=4).map(tuple),
        maybe=st.none() | st.floats(0, 1),
        shape=st.none() | st.lists(st.integers(0, 9), max_size=4).map(tuple),
        table=st.dictionaries(st.text(max_size=3), st.builds(Inner, st.floats(0, 1)), max_size=3),
    )
)
@settings(deadline=None)
def test_any_data_come_back(data: Everything) -> None:
    assert through_json(data) == data


@dataclass(frozen=True)
class Fractions:
    one: float = 0.5
    maybe: float | None = None
    both: tuple[float, float] = (0.5, 0.5)
    many: tuple[float, ...] = ()
    table: dict[str, float] = field(default_factory=dict)
    count: int = 1
    counts: tuple[int, ...] = ()


def test_a_whole_number_in_place_of_a_fraction_is_written_as_one() -> None:
    """So what is hashed before a message and after it is the same."""
    whole = Fractions(1, 2, (3, 4), (5,), {"x": 6}, 7, (8,))
    written = json.dumps(write_fields(whole))
    assert written == json.dumps(
        {
            "one": 1.0,
            "maybe": 2.0,
            "both": [3.0, 4.0],
            "many": [5.0],
            "table": {"x": 6.0},
            "count": 7,
            "counts": [8],
        }
    )
    read = read_fields(Fractions, json.loads(written))
    assert read == whole
    assert json.dumps(write_fields(read)) == written


numbers = st.integers(-9, 9) | st.floats(-9, 9)


@given(
    data=st.builds(
        Fractions,
        one=numbers,
        maybe=st.none() | numbers,
        both=st.tuples(numbers, numbers),
        many=st.lists(numbers, max_size=3).map(tuple),
        table=st.dictionaries(st.text(max_size=3), numbers, max_size=3),
    )
)
@settings(deadline=None)
def test_what_was_read_is_written_as_it_was(data: Fractions) -> None:
    written = json.dumps(write_fields(data))
    assert json.dumps(write_fields(read_fields(Fractions, json.loads(written)))) == written


def test_a_whole_number_may_stand_for_a_float_but_stays_none() -> None:
    rate = read_fields(Everything, {"name": "a", "rate": 3}).rate
    assert (rate, type(rate)) == (3.0, float)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", 3),
        ("name", None),
        ("name", "x" * (LONGEST_TEXT + 1)),
        ("name", "\ud800"),  # half of a character: no file and no message can have such a name
        ("count", -1),
        ("count", 1.0),
        ("count", True),
        ("count", "1"),
        ("count", LARGEST_INTEGER + 1),
        ("count", 10**4000),
        ("count", None),
        ("rate", "0.5"),
        ("rate", True),
        ("rate", float("nan")),
        ("rate", float("inf")),
        ("rate", -1e38),
        ("rate", 10**400),  # more than a float can hold
        ("rate", 10**4000),
        ("rate", None),
        ("there", 1),
        ("there", "true"),
        ("colour", "blue"),
        ("colour", 0),
        ("colour", ["red"]),
        ("pair", [1]),
        ("pair", [1, 2, 3]),
        ("pair", "12"),
        ("pair", {"0": 1, "1": 2}),
        ("pair", [1, None]),
        ("many", "ab"),
        ("many", [1]),
        ("many", ["a"] * (MOST_ITEMS + 1)),
        ("maybe", "none"),
        ("shape", 3),
        ("shape", [-1]),
        ("inner", None),
        ("inner", 0.5),
        ("inner", {"share": "half"}),
        ("inner", {"other": 0.5}),
        ("inner_maybe", []),
        ("table", []),
        ("table", {"x": None}),
        ("table", {"x": {"share": -1e40}}),
        ("table", {"\udfff": {}}),
        ("table", {str(number): {} for number in range(MOST_ITEMS + 1)}),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_a_wrong_value_is_refused_with_its_place(name: str, value: object) -> None:
    with pytest.raises(NetworkError, match=rf"(Everything\.{name}|Inner)") as refusal:
        read_fields(Everything, {"name": "all", name: value})
    assert len(str(refusal.value)) < 300
    str(refusal.value).encode()  # it can be printed


@pytest.mark.parametrize("table", [None, [], 3, "name", [["name", "all"]]])
def test_something_else_than_a_table_is_refused(table: object) -> None:
    with pytest.raises(NetworkError, match="Everything must be a table"):
        read_fields(Everything, table)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(NetworkError, match=r"Everything lacks .*name"):
        read_fields(Everything, {"count": 3})


@pytest.mark.parametrize(
    "name", ["other", "kind", "__class__", "", "x" * 10_000, "\ud800"], ids=lambda name: ascii(name)[:20]
)
def test_an_unknown_field_is_named(name: str) -> None:
    with pytest.raises(NetworkError, match="Everything has no") as refusal:
        read_fields(Everything, {"name": "all", name: 3})
    assert len(str(refusal.value)) < 200
    str(refusal.value).encode()


def brackets(depth: int) -> Any:
    """None if that is deeper than the parser follows, which depends on the version of Python."""
    try:
        return json.loads("[" * depth + "]" * depth)
    except RecursionError:
        return None


def test_brackets_in_brackets_are_refused_however_deep_they_are() -> None:
    """As deep as the parser just follows: whatever is done with them later must not go as deep again."""
    low, high = 1, 2**20
    assert brackets(low) is not None
    assert brackets(high) is None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if brackets(middle) is None else (middle, high)
    for depth in range(max(low - 250, 1), low + 1):
        nested = brackets(depth)
        for name in ("count", "shape", "inner", "table", "colour"):
            with pytest.raises(NetworkError):
                read_fields(Everything, {"name": "all", name: nested})
