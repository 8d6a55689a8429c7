"""A device is one key for the whole run, whatever other nodes say."""

import json
from pathlib import Path

import pytest
from flwr.app import Context, Message, UserConfig
from flwr.proto.node_pb2 import NodeInfo

from fedmef.errors import UserError
from fedmef.federation.engines import Lost
from fedmef.federation.engines.flower import client_app, server_app
from fedmef.federation.engines.flower.engine import FlowerEngine
from fedmef.federation.engines.flower.nodes import Nodes
from fedmef.federation.engines.flower.owners import Owners, fingerprint
from fedmef.federation.engines.flower.server import Log
from fedmef.federation.engines.flower.template.app.data import load_data
from fedmef.federation.engines.flower.template.app.model import load_model
from fedmef.federation.engines.flower.translation import TRAIN
from fedmef.runs.directory import NODES, Run
from fedmef.runs.records import Round
from tests.federation.engines.flower.loopback import Loopback, answering, context
from tests.federation.small import digest

TWICE = answering(lambda _, message: message * 2)
NOT_THERE = Lost("its node is not connected")


def engine(fleet: Loopback, owners: Owners, devices: int = 2) -> FlowerEngine:
    nodes = Nodes(fleet, devices, poll=0.01, owners=owners)
    return FlowerEngine(nodes, deadline=0.05, patience=0.05)


def trained(fleet: Loopback) -> list[int]:
    return [node for node, kind in fleet.received if kind == TRAIN]


def test_no_other_node_takes_the_place_of_a_device_that_is_away() -> None:
    """Neither while the app runs nor after it was started again, and the first comes back when it likes."""
    fleet = Loopback({77: 0, 99: 1}, TWICE)
    owners = Owners()
    flower = engine(fleet, owners)
    del fleet.nodes[77]
    fleet.nodes[88] = 0
    for _ in range(2):
        assert flower.train({0: b"a", 1: b"b"}) == {0: NOT_THERE, 1: b"bb"}
        flower = engine(fleet, owners)
    fleet.nodes[55] = 0
    fleet.keys[55] = b"77"  # Flower gave it another number, but its key is the same
    assert flower.train({0: b"a"}) == {0: b"aa"}
    assert 88 not in trained(fleet)


def test_a_key_without_a_name_is_one_device_only() -> None:
    owners, greedy = Owners(), NodeInfo(public_key=b"greedy")
    assert owners.claim(greedy, 0) is None
    assert "is device 0 and says that it is device 1" in (owners.claim(greedy, 1) or "")
    assert owners.claim(NodeInfo(public_key=b"honest"), 1) is None
    assert owners.claim(greedy, 0) is None


def test_a_node_that_says_that_it_is_a_connected_device_costs_it_nothing() -> None:
    fleet = Loopback({77: 0, 99: 1}, TWICE)
    flower = engine(fleet, Owners())
    fleet.nodes[11] = 0
    fleet.nodes[12] = 1
    assert flower.train({0: b"a", 1: b"b"}) == {0: b"aa", 1: b"bb"}
    assert set(trained(fleet)) == {77, 99}


def test_whoever_registers_a_key_may_say_which_device_it_is() -> None:
    """A liar that came first has to go; one that is registered as another device is never believed."""
    fleet = Loopback({11: 0, 99: 1}, TWICE)
    flower = engine(fleet, Owners())
    assert flower.train({0: b"a"}) == {0: b"aa"}
    fleet.nodes[77] = 0
    fleet.names[77] = "device-0"
    flower.train({0: b"a"})
    assert trained(fleet) == [11, 77]
    fleet.nodes[12] = 0
    fleet.names[12] = "device-1"
    fleet.nodes[13] = 0
    fleet.names[13] = "device-0"  # registered twice: the first is kept
    flower.train({0: b"a"})
    assert trained(fleet) == [11, 77, 77]


def test_a_board_is_replaced_by_registering_another_key_with_its_name() -> None:
    fleet = Loopback({77: 0}, TWICE)
    fleet.names = {77: "device-0", 78: "device-0"}
    flower = engine(fleet, Owners(), devices=1)
    del fleet.nodes[77]
    fleet.nodes[78] = 0
    assert flower.train({0: b"a"}) == {0: b"aa"}


def test_owners_are_kept_in_a_file_and_so_is_who_was_refused(tmp_path: Path) -> None:
    file = tmp_path / NODES
    owners = Owners.read(file)
    assert owners.claim(NodeInfo(public_key=b"one"), 3) is None
    owners.write(file)
    again = Owners.read(file)
    reason = again.claim(NodeInfo(public_key=b"two"), 3)
    assert reason is not None
    assert fingerprint(b"one") in reason
    assert "--name device-3" in reason
    again.write(file)
    assert json.loads(file.read_text())["refused"] == {fingerprint(b"two"): reason}
    assert Owners.read(file).claim(NodeInfo(public_key=b"one"), 3) is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"devices": {"x": "y"}}', b"[" * 200_000, b"\xff"])
def test_a_damaged_file_is_not_taken_for_an_empty_one(content: bytes, tmp_path: Path) -> None:
    (tmp_path / NODES).write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        Owners.read(tmp_path / NODES)


CONFIG: UserConfig = {"devices": 2, "devices-per-round": 2, "rounds": 3, "local-epochs": 1, "patience": 0.1}


class PowerCut(Log):
    def round_done(self, record: Round, model: object = None) -> None:
        raise RuntimeError("power cut")


def test_a_resumed_run_believes_the_same_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A liar that is there before the device changes no bit, and its key is in the run's directory."""

    def run(name: str, nodes: dict[int, int | None]) -> Run:
        config: UserConfig = {**CONFIG, "resume": True, "out": str(tmp_path / name)}
        fleet = Loopback(nodes, app, config)
        server_app(load_model, load_data)(fleet, context(0, config))
        return Run.open(tmp_path / name)

    devices = client_app(load_data)

    def app(message: Message, context: Context) -> Message:
        return devices(message, context)

    honest = run("honest", {9: 0, 5: 1})
    with monkeypatch.context() as patch:
        patch.setattr("fedmef.federation.engines.flower.server.Log", PowerCut)
        with pytest.raises(RuntimeError, match="power cut"):
            run("restarted", {9: 0, 5: 1})
    restarted = run("restarted", {3: 1, 9: 0, 5: 1})
    assert digest(restarted.path) == digest(honest.path)
    claims = json.loads((restarted.path / NODES).read_text())
    assert claims["devices"] == {"0": fingerprint(b"9"), "1": fingerprint(b"5")}
    assert list(claims["refused"]) == [fingerprint(b"3")]


def test_where_nodes_have_no_keys_a_device_may_come_back_as_any(tmp_path: Path) -> None:
    config: UserConfig = {**CONFIG, "rounds": 1, "resume": True, "out": str(tmp_path / "run")}
    for rounds, node in ((1, 9), (2, 8)):
        longer: UserConfig = {**config, "rounds": rounds, "bind-devices": False}
        fleet = Loopback({node: 0, 5: 1}, client_app(load_data), longer)
        server_app(load_model, load_data)(fleet, context(0, longer))
    assert len(Run.open(tmp_path / "run").rounds) == 2
    assert not (tmp_path / "run" / NODES).exists()
