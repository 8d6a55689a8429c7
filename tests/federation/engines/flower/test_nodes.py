"""Which node of a Grid is which device, as nodes come, go and lie about it."""

import time

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fedmef.errors import FedmefError
from fedmef.federation.engines import Lost
from fedmef.federation.engines.flower.engine import FlowerEngine
from fedmef.federation.engines.flower.nodes import Nodes
from fedmef.federation.engines.flower.translation import TRAIN
from tests.federation.engines.flower.loopback import Loopback, answering

TWICE = answering(lambda _, message: message * 2)


def engine(fleet: Loopback, devices: int = 2) -> FlowerEngine:
    return FlowerEngine(Nodes(fleet, devices, poll=0.01), deadline=0.05, patience=0.05)


def test_a_device_that_comes_back_as_another_node_is_found_again() -> None:
    fleet = Loopback({77: 1, 99: 0}, TWICE)
    flower = engine(fleet)
    del fleet.nodes[77]
    fleet.nodes[55] = 1
    assert flower.train({1: b"b"}) == {1: b"bb"}


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


def test_of_two_nodes_that_say_that_they_are_the_same_device_the_later_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = Loopback({88: 0, 77: 0, 99: 1}, TWICE)
    with caplog.at_level("WARNING", logger="flwr"):
        assert engine(fleet).train({0: b"a", 1: b"b"}) == {0: b"aa", 1: b"bb"}
    assert (77, TRAIN) in fleet.received
    assert "partition-id = 0: two nodes say so" in caplog.text


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


def test_a_fleet_that_nobody_can_join_says_what_its_nodes_say() -> None:
    def app(message: Message, context: Context) -> Message:
        return Message(Error(0, "partition-id = None: start the SuperNode with ..."), reply_to=message)

    with pytest.raises(FedmefError, match=r"no device is connected after 0\.05 s: partition-id = None"):
        engine(Loopback({77: 0, 88: 1}, app))


def test_who_waits_stops_when_no_answer_can_come_any_more() -> None:
    class OverError(Exception):
        pass

    def over() -> None:
        raise OverError

    with pytest.raises(OverError):
        Nodes(Loopback({}, TWICE), 1, poll=0.01, check_running=over).wait(60.0)
