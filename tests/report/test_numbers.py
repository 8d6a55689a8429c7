import pytest

from fedmef.report.numbers import process_memory, ratio, signless_zero
from tests.costs.formula import process


@pytest.mark.parametrize(("value", "shown"), [(-0.001, "0.00"), (0.0, "0.00"), (-1.5, "−1.50"), (2, "2.00")])
def test_a_zero_has_no_sign_and_a_minus_is_one(value: float, shown: str) -> None:
    assert signless_zero(value) == shown


def test_a_ratio_has_three_digits_and_needs_something_to_compare_with() -> None:
    assert [ratio(2, 3), ratio(1, 1000), ratio(None, 1), ratio(1, None), ratio(1, 0)] == [
        "0.667×",
        "0.001×",
        "–",
        "–",
        "–",
    ]


def test_the_process_is_there_when_it_could_be_measured() -> None:
    assert process_memory(process(4)) == 4
    assert process_memory("there is no module 'gone'") is None
