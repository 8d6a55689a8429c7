"""The engine on a Grid that has no network: what becomes of answers, and of nodes that give none."""

import pytest
from flwr.clientapp.mod import message_size_mod

from fedmef.engines import Lost
from fedmef.engines.flower.engine import FlowerEngine
from fedmef.engines.flower.nodes import Nodes
from fedmef.engines.flower.translation import WHICH_DEVICE, train_message, train_reply
from fedmef.errors import FedmefError, UserError
from tests.engines.flower.loopback import Loopback, answering, context

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


def test_nodes_beyond_the_experiment_are_left_alone() -> None:
    fleet = Loopback({77: 0, 88: 5}, TWICE)
    assert engine(fleet, devices=1).train({0: b"a"}) == {0: b"aa"}


def test_two_nodes_that_say_that_they_are_the_same_device_are_refused() -> None:
    with pytest.raises(UserError, match="partition-id = 0: two nodes say so"):
        engine(Loopback({77: 0, 88: 0}, TWICE))


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
