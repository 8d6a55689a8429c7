import pytest

from fedmef.costs.units import byte_unit, counted, human_bytes, human_count, human_time, in_unit


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (12_345_678, "12.3 MB"),
        (2.5e9, "2.5 GB"),
        (3e15, "3000.0 TB"),
    ],
)
def test_bytes_have_decimal_units(count: float, shown: str) -> None:
    assert human_bytes(count) == shown


@pytest.mark.parametrize(
    ("largest", "unit"),
    [(0, (1, "B")), (999, (1, "B")), (1000, (1e3, "kB")), (5e6, (1e6, "MB")), (7e9, (1e9, "GB"))],
)
def test_a_column_has_the_unit_of_its_largest_number(largest: float, unit: tuple[float, str]) -> None:
    assert byte_unit(largest) == unit


@pytest.mark.parametrize(
    ("count", "size", "shown"),
    [(400, 1, "400"), (12_345_678, 1e6, "12.3"), (123_000, 1e6, "0.12"), (100, 1e6, "0.0001")],
)
def test_no_number_of_a_column_becomes_zero(count: float, size: float, shown: str) -> None:
    assert in_unit(count, size) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.04, "0.0 s"), (119.9, "119.9 s"), (120, "2.0 m"), (7200, "2.0 h")]
)
def test_a_time_has_the_unit_of_which_there_are_at_least_two(seconds: float, shown: str) -> None:
    assert human_time(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(7, "7"), (9_999, "9,999"), (12_345, "12.3 k"), (1_234_567, "1.23 M")]
)
def test_a_count_is_whole_as_long_as_it_is_short(count: int, shown: str) -> None:
    assert human_count(count) == shown


def test_one_is_singular_and_any_other_number_plural() -> None:
    assert [counted(number, "run") for number in (0, 1, 2, 1234)] == [
        "0 runs",
        "1 run",
        "2 runs",
        "1,234 runs",
    ]
    assert [counted(number, "class", "classes") for number in (1, 10)] == ["1 class", "10 classes"]
