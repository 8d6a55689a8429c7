"""The engine on a Grid that has no network: what becomes of answers, and of nodes that give none."""

from collections.abc import Callable

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from fedmef.federation.engines import Lost
from fedmef.federation.engines.flower.engine import FlowerEngine
from fedmef.federation.engines.flower.nodes import Nodes
from fedmef.federation.engines.flower.translation import STYPE, TRAIN, WHICH_DEVICE
from tests.federation.engines.flower.loopback import Loopback, answering

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
