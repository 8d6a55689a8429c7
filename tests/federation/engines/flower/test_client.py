"""The device's half of an app, on a Grid without a network, with the template's data."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, UserConfig
from torch import nn

from fedmef.data import Dataset, Split
from fedmef.device.backend import Backend, Step, open_backend
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines.base import Lost
from fedmef.federation.engines.flower import client_app, server_app
from fedmef.federation.engines.flower.answers import answer_of
from fedmef.federation.engines.flower.client import DATA, STORE, store_of
from fedmef.federation.engines.flower.server import experiment_of
from fedmef.federation.engines.flower.template.app.data import load_data
from fedmef.federation.engines.flower.translation import device_of, train_message, which_device_message
from fedmef.federation.preparation import prepare
from fedmef.federation.server import Server
from fedmef.models.initial import prepared_module
from fedmef.runs.directory import Run
from fedmef.sparsity.network import Network
from fedmef.wire.update import decode_update
from tests.federation.engines.flower.loopback import Loopback, context
from tests.federation.own_parts import opaque_network

CONFIG: UserConfig = {"devices": 2, "devices-per-round": 2, "rounds": 2, "adjust-every": 1, "local-epochs": 1}
NODES: dict[int, int | None] = {9: 0, 5: 1}
OWN = "tests.federation.own_parts"
SETTINGS: dict[str, Any] = {"width": 8, "local_epochs": 1, "devices": 4, "devices_per_round": 2}


def broadcast(**settings: Any) -> tuple[Server, bytes]:
    experiment = Experiment(**{**SETTINGS, **settings})
    server = Server(experiment, prepare(experiment, load_data()).model)
    return server, server.broadcast(server.job(0), [0])[0]


def answer(
    message: bytes, device: int = 0, node: dict[str, str] | None = None, **options: Any
) -> bytes | Lost:
    app = client_app(options.pop("load_data", load_data), **options)
    reply = app(train_message(message, node=1), context(device, node=node))
    return answer_of(reply, device, len(message), None)[0]


def write_share(folder: Path, device: int) -> dict[str, str]:
    """A device's data as arrays on its own disk; what its SuperNode says of them."""
    folder.mkdir()
    train = load_data(device).train
    np.save(folder / "images.npy", train.images)
    np.save(folder / "labels.npy", train.labels)
    return {DATA: str(folder)}


def reason(message: bytes, **options: Any) -> str:
    lost = answer(message, **options)
    assert isinstance(lost, Lost)
    return lost.reason


def test_a_device_trains_what_comes_with_the_message_on_its_own_data() -> None:
    """It has neither the model's code nor an experiment."""
    server, message = broadcast()
    for device in (0, 3):
        update = answer(message, device)
        assert isinstance(update, bytes)
        decoded = decode_update(update, server.model.network)
        assert (decoded.device, decoded.samples) == (device, len(load_data(device).train))


def test_a_node_may_have_its_data_on_its_own_disk(tmp_path: Path) -> None:
    """And then no app needs a function for it: one serves all nodes."""
    _, message = broadcast()
    node = write_share(tmp_path / "share", 3)
    assert answer(message, 3, node, load_data=None) == answer(message, 3)
    assert answer(message, 3, node, load_data=more_classes) == answer(message, 3)  # the node's own come first


def test_a_node_without_data_is_told_how_to_name_them(tmp_path: Path) -> None:
    _, message = broadcast()
    assert "--node-config 'partition-id=0 data=\"/folder\"'" in reason(message, load_data=None)
    assert "no such folder" in reason(message, node={DATA: str(tmp_path / "none")})


def test_a_device_minimises_what_its_app_names() -> None:
    loss = f"{OWN}:smooth_loss"
    _, plain = broadcast(backend="torch")
    _, smooth = broadcast(loss=loss)
    ours, theirs = answer(plain, backend="torch"), answer(smooth, loss=loss)
    assert isinstance(theirs, bytes)
    assert theirs != ours
    assert f"device 0 minimises cross_entropy, and not loss = '{loss}'" in reason(smooth)
    assert f"device 0 minimises {loss}" in reason(plain, loss=loss)
    assert "a loss of your own needs torch" in reason(smooth, loss=loss, backend="native")


loads: list[int] = []


def counted(partition_id: int) -> Dataset:
    loads.append(partition_id)
    return load_data(partition_id)


def test_data_are_loaded_once_and_not_for_every_message() -> None:
    _, message = broadcast()
    loads.clear()
    app = client_app(counted)
    for _ in range(3):
        assert not app(train_message(message, node=1), context(2)).has_error()
    assert loads == [2]


def test_a_message_is_gone_while_the_device_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    _, message = broadcast()
    only_this_test = sys.getrefcount(message)
    sent = train_message(message, node=1)
    holders: list[int] = []

    def counting(*arguments: Any, **options: Any) -> Backend:
        backend = open_backend(*arguments, **options)
        step = backend.step

        def counted(*arguments: Any, **options: Any) -> Step:
            holders.append(sys.getrefcount(message))
            return step(*arguments, **options)

        monkeypatch.setattr(backend, "step", counted)
        return backend

    monkeypatch.setattr("fedmef.federation.engines.flower.client.open_backend", counting)
    assert not client_app(load_data)(sent, context(0)).has_error()
    assert set(holders) == {only_this_test}


@pytest.fixture
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can import PyTorch. (An environment that never had it is in test_light.py.)"""
    monkeypatch.delitem(sys.modules, "fedmef.methods.prunefl", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, None),
        ({"method": "fedavg"}, None),
        ({"model": f"{OWN}:opaque_network", "width": None}, "PyTorch is not installed"),
        ({"method": "prunefl"}, "torch is not installed"),
        ({"method": "zerofl"}, "PyTorch is not installed, and the other backend: the method needs torch"),
    ],
)
def test_without_pytorch_a_device_trains_what_it_can_and_says_what_it_cannot(
    settings: dict[str, Any], why: str | None, request: pytest.FixtureRequest
) -> None:
    _, message = broadcast(**settings)
    request.getfixturevalue("_no_torch")
    if why is None:
        assert isinstance(answer(message), bytes)
    else:
        assert why in reason(message)


def test_the_network_and_the_masks_stay_on_the_device(tmp_path: Path) -> None:
    server, first = broadcast()
    answer(first, 3)
    held = sorted(file.suffix for file in (tmp_path / "flwr" / "fedmef" / "device-3").iterdir())
    assert held == [".json", ".safetensors"]
    server.ledger.note(3)
    short = server.broadcast(server.job(1), [3])[3]
    assert len(short) < len(first)
    assert isinstance(answer(short, 3), bytes)
    lost = answer(short, 2)
    assert isinstance(lost, Lost)
    assert lost.needs_all


def test_a_node_may_keep_them_where_it_likes(tmp_path: Path) -> None:
    node = context(3)
    assert store_of(node).folder == tmp_path / "flwr" / "fedmef" / "device-3"
    node.node_config[STORE] = str(tmp_path / "sd-card")
    assert store_of(node).folder == tmp_path / "sd-card"


def test_a_server_cannot_make_a_device_import_anything() -> None:
    _, message = broadcast(method=f"{OWN}:Lazy")
    assert f"unknown method '{OWN}:Lazy'" in reason(message)
    assert isinstance(answer(message, methods=(f"{OWN}:Lazy",)), bytes)
    assert "unknown method" in reason(message, methods=(f"{OWN}:LazyFedMef",))


def load_module(network: Network) -> nn.Module:
    experiment = Experiment(**{**SETTINGS, "width": None, "model": f"{OWN}:opaque_network"})
    return prepared_module(experiment, network.input.shape[0], network.classes)


def test_a_network_that_is_not_data_needs_its_code_on_the_device() -> None:
    _, message = broadcast(model=f"{OWN}:opaque_network", width=None)
    assert "needs its own PyTorch code" in reason(message)
    assert isinstance(answer(message, load_module=load_module), bytes)


def wide_images(partition_id: int) -> Dataset:
    data = load_data(partition_id)
    train, test = (Split(np.repeat(part.images, 2, axis=3), part.labels) for part in (data.train, data.test))
    return Dataset("wide", train, test, classes=10)


def more_classes(partition_id: int) -> Dataset:
    data = load_data(partition_id)
    train, test = (Split(part.images, part.labels + 5) for part in (data.train, data.test))
    return Dataset("more", train, test, classes=15)


def test_data_that_do_not_fit_the_network_are_told() -> None:
    _, message = broadcast()
    wide = reason(message, load_data=wide_images)
    assert wide == "device 0 has images of shape [1, 8, 16], the network takes [1, 8, 8]"
    assert reason(message, load_data=more_classes) == "device 0 has labels beyond the 10 classes"


@pytest.mark.parametrize("message", [b"", b"nonsense", bytes(1000)])
def test_a_message_that_is_none_costs_an_update_and_no_device(message: bytes) -> None:
    assert reason(message).startswith(("not a fedmef message", "the header claims"))


def test_ray_can_take_the_device_half() -> None:
    from ray import cloudpickle

    assert len(cloudpickle.dumps(client_app(load_data))) < 10_000  # type: ignore[no-untyped-call]


def test_the_device_half_loads_neither_pytorch_nor_anything_of_the_servers() -> None:
    code = (
        "import sys\n"
        "import fedmef.federation.engines.flower.template.app.client_app\n"
        "heavy = {'torch', 'ray', 'matplotlib', 'pydantic', 'fedmef.federation.server',\n"
        "         'fedmef.federation.engines.flower.server', 'fedmef.experiment.settings'}\n"
        "sys.exit(', '.join(heavy & sys.modules.keys()) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_a_whole_app_trains_a_network_that_is_not_data(tmp_path: Path) -> None:
    config: UserConfig = {**CONFIG, "out": str(tmp_path / "run")}
    experiment = experiment_of(config, opaque_network, load_data)

    def module_for(network: Network) -> nn.Module:
        return prepared_module(experiment, network.input.shape[0], network.classes)

    devices = client_app(load_data, load_module=module_for)
    server_app(opaque_network, load_data)(Loopback(dict(NODES), devices, config), context(0, config))
    run = Run.open(tmp_path / "run")
    assert run.network.opaque is not None
    assert run.summary.lost_updates == 0


def test_a_device_without_a_number_is_told_how_to_get_one() -> None:
    nameless = Context(1, 2, {}, context(0).state, {})
    with pytest.raises(Exception, match="--node-config 'partition-id=0'"):
        client_app(load_data)(train_message(b"", node=1), nameless)


def test_a_query_is_answered_with_the_devices_number() -> None:
    reply: Message = client_app(load_data)(which_device_message(1, 10.0), context(7))
    assert device_of(reply) == 7
