"""The engine on a Grid that has no network: what becomes of answers, and of nodes that give none."""

from collections.abc import Callable

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from fedmef.federation.engines import Lost
from fedmef.federation.engines.flower.engine import FlowerEngine
from fedmef.federation.engines.flower.nodes import Nodes
from fedmef.federation.engines.flower.translation import STYPE, TRAIN, WHICH_DEVICE
from fedmef.runs.records import DeviceReport, Failed
from tests.federation.engines.flower.loopback import Loopback, answering

TWICE = answering(lambda _, message: message * 2)


def engine(fleet: Loopback, devices: int = 2) -> FlowerEngine:
    return FlowerEngine(Nodes(fleet, devices, poll=0.01), deadline=0.05, patience=0.05)


def test_each_device_gets_its_own_message_wherever_flower_puts_it() -> None:
    fleet = Loopback({77: 1, 99: 0}, TWICE)
    flower = engine(fleet)
    assert flower.train({0: b"a", 1: b"bb"}) == {0: b"aa", 1: b"bbbb"}
    sizes = [
        (report.device, report.bytes_down, report.bytes_up)
        for report in flower.reports
        if isinstance(report, DeviceReport)
    ]
    assert sizes == [(0, 1, 2), (1, 2, 4)]
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


def costs(seconds: float | list[float], peak_memory: float = 1) -> MetricRecord:
    return MetricRecord({"seconds": seconds, "peak-memory": peak_memory})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RecordDict(), "without one of ours"),
        (RecordDict({"fedmef": array("numpy.ndarray"), "costs": costs(0.01)}), "without one of ours"),
        (RecordDict({"fedmef": ConfigRecord({"device": 0})}), "without one of ours"),
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


@pytest.mark.parametrize(
    ("reported", "wrong"),
    [
        (None, "seconds, peak_memory"),
        (costs(-1), "seconds"),
        (costs(-1.0), "seconds"),
        (costs(float("nan")), "seconds"),
        (costs(float("inf")), "seconds"),
        (costs(1e300), "seconds"),
        (costs([0.1, 0.2]), "seconds"),
        (costs(0.1, -1), "peak_memory"),
        (costs(0.1, 0.5), "peak_memory"),
        (costs(0.1, 2**62), "peak_memory"),
        (ConfigRecord({"seconds": "\ud83d\udca5" * 9999, "peak-memory": "x"}), "seconds, peak_memory"),
    ],
)
def test_a_report_that_cannot_be_is_left_out_and_the_update_kept(
    reported: MetricRecord | ConfigRecord | None, wrong: str
) -> None:
    content = RecordDict({"fedmef": array()} if reported is None else {"fedmef": array(), "costs": reported})
    flower = engine(Loopback({77: 0}, asked_which(lambda message: Message(content, reply_to=message))), 1)
    assert flower.train({0: b"a"}) == {0: b"x"}
    reason = f"its report of itself is left out: no such {wrong}"
    assert flower.reports == [Failed(device=0, reason=reason)]


def test_whole_seconds_are_seconds() -> None:
    content = RecordDict({"fedmef": array(), "costs": costs(0)})
    flower = engine(Loopback({77: 0}, asked_which(lambda message: Message(content, reply_to=message))), 1)
    assert flower.train({0: b"a"}) == {0: b"x"}


def asked_which(train: Callable[[Message], Message]) -> Callable[[Message, Context], Message]:
    return lambda message, context: (
        train(message) if message.metadata.message_type == TRAIN else TWICE(message, context)
    )
