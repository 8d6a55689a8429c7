"""Our messages as Flower's, and back."""

import pytest
from flwr.app import Error, Message
from flwr.clientapp.mod import message_size_mod

from fedmef.errors import NotHeldError
from fedmef.federation.engines import Lost
from fedmef.federation.engines.flower.answers import answer_of, lost_of
from fedmef.federation.engines.flower.translation import (
    content_of,
    take_content,
    train_message,
    train_reply,
)
from fedmef.federation.simulated.faults import InjectedFault
from fedmef.runs.records import DeviceReport
from tests.federation.engines.flower.loopback import context


def test_bytes_match_what_flower_counts_within_two_percent(caplog: pytest.LogCaptureFixture) -> None:
    message = train_message(bytes(10_000), node=1)
    with caplog.at_level("INFO", logger="flwr"):
        message_size_mod(
            message, context(0), lambda message, _: train_reply(message, 0, lambda: content_of(message) * 2)
        )
    messages = [record.getMessage() for record in caplog.records]
    down, up = (int(message.split()[-2]) for message in messages if "message size" in message)
    assert 10_000 <= down <= 10_200
    assert 20_000 <= up <= 20_400


def test_bytes_stay_bytes_in_both_directions() -> None:
    content = bytes(range(256))
    message = train_message(content, node=1)
    assert content_of(message) == content
    reply = train_reply(message, 3, lambda: b"\3" + content_of(message))
    answer, report = answer_of(reply, 3, len(content), None)
    assert answer == b"\3" + content
    assert isinstance(report, DeviceReport)
    assert (report.device, report.bytes_down, report.bytes_up) == (3, 256, 257)
    assert report.peak_memory > 10**7


def test_content_that_was_taken_is_in_the_message_no_more() -> None:
    message = train_message(b"content", node=1)
    assert take_content(message) == b"content"
    assert content_of(message) == b""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InjectedFault("dropped out (injected)"), Lost("dropped out (injected)")),
        (NotHeldError("no masks"), Lost("no masks", needs_all=True)),
    ],
)
def test_why_a_device_has_no_answer_arrives_as_it_was(error: Exception, expected: Lost) -> None:
    def train() -> bytes:
        raise error

    reply = train_reply(train_message(b"", node=1), 3, train)
    assert answer_of(reply, 3, 0, None) == (expected, None)


def test_no_answer_is_too_late_where_there_is_a_deadline() -> None:
    assert answer_of(None, 3, 0, 2.0) == (Lost.too_late(2.0), None)
    assert answer_of(None, 3, 0, None) == (Lost("no answer"), None)


def test_what_ray_says_of_a_dead_worker_is_said_in_a_line() -> None:
    paragraphs = "ray.exceptions.ActorDiedError: The actor died\n" + "address\n" * 50
    reply = Message(Error(0, paragraphs), reply_to=train_message(b"", node=1))
    assert lost_of(reply).reason.startswith("its worker process died")
