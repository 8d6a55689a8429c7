"""How a device without an answer is told of, from wherever it was."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fedmef.device.lost import LONGEST_REASON, LONGEST_TRACE, Lost
from fedmef.errors import FedmefError, MessageError, NotHeldError


def caught(error: Exception) -> Lost:
    try:
        raise error
    except Exception as raised:
        return Lost.by_raising(3, raised)


def test_what_a_devices_code_raises_is_named_with_its_traceback() -> None:
    lost = caught(ZeroDivisionError("one by none"))
    assert lost.reason == "device 3 failed: ZeroDivisionError: one by none"
    assert "Traceback" in lost.traceback
    assert not lost.needs_all


def test_an_error_of_ours_says_what_it_says() -> None:
    lost = caught(MessageError("no message of ours"))
    assert lost.reason == "no message of ours"
    assert "MessageError" in lost.traceback


def test_a_device_that_lacks_something_is_no_bug_and_needs_all() -> None:
    assert caught(NotHeldError("no masks")) == Lost("no masks", needs_all=True)


def test_a_long_reason_is_cut() -> None:
    for error in (FedmefError("x" * 10_000), KeyError("x" * 10_000), NotHeldError("x" * 10_000)):
        assert len(caught(error).reason) == LONGEST_REASON


@given(some.text(max_size=LONGEST_REASON), some.text(max_size=200), some.booleans())
def test_it_travels_as_text(reason: str, traceback: str, needs_all: bool) -> None:
    lost = Lost(reason, traceback, needs_all)
    assert Lost.from_text(lost.to_text()) == lost


@pytest.mark.parametrize(
    "text",
    ["", "killed", "{}", "[]", "null", '{"reason": 1}', '{"reason": "x", "traceback": ""}', "[" * 100_000],
)
def test_text_of_any_other_kind_is_a_reason(text: str) -> None:
    assert Lost.from_text(text) == Lost(text[:LONGEST_REASON])


def test_text_from_elsewhere_is_bounded_and_says_no_more_than_it_may() -> None:
    table = {"reason": "x" * 10_000, "traceback": "y" * 100_000 + "the end", "needs_all": "true"}
    lost = Lost.from_text(json.dumps(table))
    assert len(lost.reason) == LONGEST_REASON
    assert len(lost.traceback) == LONGEST_TRACE
    assert lost.traceback.endswith("the end")
    assert lost.needs_all is False


def test_a_device_that_is_too_late_is_told_the_deadline() -> None:
    assert Lost.too_late(2.5) == Lost("no answer within the deadline of 2.5 s")
