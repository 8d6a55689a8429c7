"""The engine on a Grid that has no network: what becomes of answers, and of nodes that give none."""

import time
from collections.abc import Callable

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import message_size_mod
from flwr.common.constant import ErrorCode

from fedmef.errors import FedmefError, UserError
from fedmef.federation.engines import Lost
from fedmef.federation.engines.flower.engine import FlowerEngine
from fedmef.federation.engines.flower.nodes import Nodes
from fedmef.federation.engines.flower.translation import (
    STYPE,
    TRAIN,
    WHICH_DEVICE,
    train_message,
    train_reply,
)
from tests.federation.engines.flower.loopback import Loopback, answering, context

TWICE = answering(lambda _, message: message * 2)


def engine(fleet: Loopback, devices: int = 2) -> FlowerEngine:
    return FlowerEngine(Nodes(fleet, devices, poll=0.01), deadline=0.05, patience=0.05)


def test_each_device_gets_its_own_message_wherever_flower_puts_it() -> None:
    fleet = Loopback({77: 1, 99: 0}, TWICE)
    flower = engine(fleet)
    assert flower.train({0: b"a", 1: b"bb"}) == {0: b"aa", 1: b"bbbb"}
    assert [(report.device, report.bytes_down, report.bytes_up) for report in flower.reports] == [
        (0, 1, 2),
        (1, 2, 4),
    ]
    flower.train({0: b"a", 1: b"b"})
    assert [node for node, kind in fleet.received if kind == WHICH_DEVICE] == [77, 99]  # once


def test_a_node_that_does_not_answer_costs_its_update_only() -> None:
    fleet = Loopback({77: 1, 99: 0}, TWICE)
    flower = engine(fleet)
    fleet.nodes[77] = None
    assert flower.train({0: b"a", 1: b"b"}) == {0: b"aa", 1: Lost.too_late(0.05)}
    assert [report.device for report in flower.reports] == [0]
    del fleet.nodes[77]
    assert flower.train({0: b"a", 1: b"b"}) == {0: b"aa", 1: Lost("its node is not connected")}


def test_a_device_that_comes_back_as_another_node_is_found_again() -> None:
    fleet = Loopback({77: 1, 99: 0}, TWICE)
    flower = engine(fleet)
    del fleet.nodes[77]
    fleet.nodes[55] = 1
    assert flower.train({1: b"b"}) == {1: b"bb"}


def test_a_device_that_fails_says_why() -> None:
    def train(device: int, message: bytes) -> bytes:
        raise RuntimeError("out of coffee")

    flower = engine(Loopback({77: 0}, answering(train)), devices=1)
    lost = flower.train({0: b"a"})[0]
    assert isinstance(lost, Lost)
    assert lost.reason == "device 0 failed: RuntimeError: out of coffee"
    assert "Traceback" in lost.traceback


def array(stype: str = STYPE) -> ArrayRecord:
    return ArrayRecord({"message": Array("uint8", (1,), stype, b"x")})


def costs(seconds: float) -> MetricRecord:
    return MetricRecord({"seconds": seconds, "peak-memory": 1})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RecordDict(), "without one of ours"),
        (RecordDict({"fedmef": array("numpy.ndarray"), "costs": costs(0.01)}), "without one of ours"),
        (RecordDict({"fedmef": ConfigRecord({"device": 0})}), "without one of ours"),
        (RecordDict({"fedmef": array()}), "does not say what it cost"),
        (RecordDict({"fedmef": array(), "costs": costs(float("nan"))}), "does not say what it cost"),
        (RecordDict({"fedmef": array(), "costs": costs(3.0)}), "no answer within the deadline"),
        (Error(0, "x" * 10_000), "x" * 500),
        (Error(ErrorCode.MESSAGE_UNAVAILABLE, "Error: Message Unavailable"), "no answer within the deadline"),
    ],
)
def test_a_node_that_answers_nonsense_costs_its_update_only(content: RecordDict | Error, reason: str) -> None:
    def app(message: Message, context: Context) -> Message:
        nonsense = message.metadata.message_type == TRAIN and context.node_config["partition-id"] == 1
        return Message(content, reply_to=message) if nonsense else TWICE(message, context)

    answers = engine(Loopback({77: 1, 99: 0}, app)).train({0: b"a", 1: b"b"})
    assert answers[0] == b"aa"
    lost = answers[1]
    assert isinstance(lost, Lost)
    assert reason in lost.reason
    assert len(lost.reason) <= 500
    assert lost.traceback == ""


def test_whole_seconds_are_seconds() -> None:
    content = RecordDict({"fedmef": array(), "costs": costs(0)})
    flower = engine(Loopback({77: 0}, asked_which(lambda message: Message(content, reply_to=message))), 1)
    assert flower.train({0: b"a"}) == {0: b"x"}


def asked_which(train: Callable[[Message], Message]) -> Callable[[Message, Context], Message]:
    return lambda message, context: (
        train(message) if message.metadata.message_type == TRAIN else TWICE(message, context)
    )


@pytest.mark.parametrize(
    "content", [RecordDict(), RecordDict({"fedmef": ConfigRecord({"device": "zero"})}), Error(0)]
)
def test_a_node_that_cannot_say_which_device_it_is_is_left_out(content: RecordDict | Error) -> None:
    def app(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] == 1:
            return Message(content, reply_to=message)
        return TWICE(message, context)

    flower = engine(Loopback({77: 1, 99: 0}, app))
    assert flower.train({0: b"a", 1: b"b"}) == {0: b"aa", 1: Lost("its node is not connected")}


def test_nodes_beyond_the_experiment_are_left_alone() -> None:
    fleet = Loopback({77: 0, 88: 5}, TWICE)
    assert engine(fleet, devices=1).train({0: b"a"}) == {0: b"aa"}


def test_two_nodes_that_say_that_they_are_the_same_device_are_refused() -> None:
    for devices in (1, 2):
        with pytest.raises(UserError, match="partition-id = 0: two nodes say so"):
            engine(Loopback({77: 0, 88: 0}, TWICE), devices)


def test_one_that_says_so_later_is_ignored_until_the_first_is_gone() -> None:
    fleet = Loopback({77: 0}, TWICE)
    flower = engine(fleet)
    fleet.nodes[88] = 0
    assert flower.train({0: b"a", 1: b"b"}) == {0: b"aa", 1: Lost("its node is not connected")}
    assert fleet.received[-1] == (77, TRAIN)
    del fleet.nodes[77]
    assert flower.train({0: b"a"}) == {0: b"aa"}


def test_a_node_that_keeps_silent_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmef.federation.engines.flower.nodes.QUERY_SECONDS", 0.5)
    fleet = Loopback({77: 0}, TWICE)
    flower = engine(fleet)
    fleet.nodes[88] = None
    waited = []
    for _ in range(3):
        started = time.monotonic()
        flower.train({0: b"a", 1: b"b"})
        waited.append(time.monotonic() - started > 0.5)
    assert waited == [True, False, False]


def test_a_fleet_that_nobody_joins_is_an_error() -> None:
    with pytest.raises(FedmefError, match="no device is connected after"):
        engine(Loopback({}, TWICE))


def test_bytes_match_what_flower_counts_within_two_percent(caplog: pytest.LogCaptureFixture) -> None:
    message = train_message(bytes(10_000), node=1)
    with caplog.at_level("INFO", logger="flwr"):
        message_size_mod(
            message, context(0), lambda message, _: train_reply(message, 0, lambda _, content: content * 2)
        )
    messages = [record.getMessage() for record in caplog.records]
    down, up = (int(message.split()[-2]) for message in messages if "message size" in message)
    assert 10_000 <= down <= 10_200
    assert 20_000 <= up <= 20_400
