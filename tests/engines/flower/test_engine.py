"""The engine on a Grid that has no network: what becomes of answers, and of nodes that give none."""

from collections.abc import Callable, Iterable

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.clientapp.mod import message_size_mod
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedmef.engines import Lost
from fedmef.engines.flower.engine import FlowerEngine
from fedmef.engines.flower.nodes import Nodes
from fedmef.engines.flower.translation import WHICH_DEVICE, device_reply, train_message, train_reply
from fedmef.errors import FedmefError, UserError


@pytest.fixture(autouse=True)
def _within_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


Train = Callable[[int, bytes], bytes]


class Fleet(Grid):
    """Nodes that answer at once; `nodes` gives the partition-id of each, or None for a node that is dead."""

    def __init__(
        self, nodes: dict[int, int | None], train: Train = lambda device, message: message * 2
    ) -> None:
        self.nodes = nodes
        self.train = train
        self.asked: list[int] = []
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            node = message.metadata.dst_node_id
            name = f"{node}/{len(self._replies)}/{message.metadata.message_type}"
            message.metadata.__dict__["_message_id"] = name
            names.append(name)
            self._answer(message, node)
        return names

    def _answer(self, message: Message, node: int) -> None:
        device = self.nodes[node]
        if device is None:
            return
        if message.metadata.message_type == WHICH_DEVICE:
            self.asked.append(node)
            reply = device_reply(message, context(device))
        else:
            reply = train_reply(message, device, self.train)
        self._replies[message.metadata.message_id] = reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies[name] for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError


def context(device: int) -> Context:
    return Context(1, 2, {"partition-id": device}, RecordDict(), {})


def engine(fleet: Fleet, devices: int = 2) -> FlowerEngine:
    return FlowerEngine(Nodes(fleet, devices, poll=0.01), deadline=0.05, patience=0.05)


def test_each_device_gets_its_own_message_wherever_flower_puts_it() -> None:
    fleet = Fleet({77: 1, 99: 0})
    flower = engine(fleet)
    assert flower.train({0: b"a", 1: b"bb"}) == {0: b"aa", 1: b"bbbb"}
    assert [(report.device, report.bytes_down, report.bytes_up) for report in flower.reports] == [
        (0, 1, 2),
        (1, 2, 4),
    ]
    flower.train({0: b"a", 1: b"b"})
    assert fleet.asked == [77, 99]  # once


def test_a_node_that_does_not_answer_costs_its_update_only() -> None:
    fleet = Fleet({77: 1, 99: 0})
    flower = engine(fleet)
    fleet.nodes[77] = None
    assert flower.train({0: b"a", 1: b"b"}) == {0: b"aa", 1: Lost("no answer within 0.05 s")}
    assert [report.device for report in flower.reports] == [0]
    del fleet.nodes[77]
    assert flower.train({0: b"a", 1: b"b"}) == {0: b"aa", 1: Lost("its node is not connected")}


def test_a_device_that_comes_back_as_another_node_is_found_again() -> None:
    fleet = Fleet({77: 1, 99: 0})
    flower = engine(fleet)
    del fleet.nodes[77]
    fleet.nodes[55] = 1
    assert flower.train({1: b"b"}) == {1: b"bb"}


def test_a_device_that_fails_says_why() -> None:
    def train(device: int, message: bytes) -> bytes:
        raise RuntimeError("out of coffee")

    flower = engine(Fleet({77: 0}, train), devices=1)
    assert flower.train({0: b"a"}) == {0: Lost("device 0 failed: RuntimeError: out of coffee")}


def test_nodes_beyond_the_experiment_are_left_alone() -> None:
    fleet = Fleet({77: 0, 88: 5})
    assert engine(fleet, devices=1).train({0: b"a"}) == {0: b"aa"}


def test_two_nodes_that_say_that_they_are_the_same_device_are_refused() -> None:
    with pytest.raises(UserError, match="partition-id = 0: two nodes say so"):
        engine(Fleet({77: 0, 88: 0}))


def test_a_fleet_that_nobody_joins_is_an_error() -> None:
    with pytest.raises(FedmefError, match="no device is connected after"):
        engine(Fleet({}))


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
