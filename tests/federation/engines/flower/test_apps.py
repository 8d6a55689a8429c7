"""The two halves of an app and the strategy, on a Grid without a network, with the template's functions."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict, UserConfig
from flwr.serverapp import ServerApp

import fedmef
from fedmef.data import Dataset, Split
from fedmef.errors import UserError
from fedmef.federation.engines.flower import FedMefStrategy, client_app, server_app
from fedmef.federation.engines.flower.apps import _tell, experiment_of
from fedmef.federation.engines.flower.template.app.task import load_data, load_model
from fedmef.federation.engines.flower.translation import TRAIN, device_number
from fedmef.methods import METHODS
from fedmef.models import build_model
from fedmef.runs.directory import Run
from fedmef.wire import MaskMemory
from tests.federation.engines.flower.loopback import Loopback, context

CONFIG: UserConfig = {"devices": 2, "devices-per-round": 2, "rounds": 3, "adjust-every": 1, "local-epochs": 1}
NODES: dict[int, int | None] = {9: 0, 5: 1}


def run(app: ServerApp, config: UserConfig) -> None:
    app(Loopback(dict(NODES), client_app(load_model, load_data), config), context(0, config))


def strategy_state(config: UserConfig) -> dict[str, Any]:
    experiment = experiment_of(config, load_model, load_data)
    network = build_model(experiment.model, classes=10, channels=1, seed=experiment.seed)
    strategy = FedMefStrategy(experiment, network)
    grid = Loopback(dict(NODES), client_app(load_model, load_data), config)
    result = strategy.start(grid, strategy.arrays(), num_rounds=experiment.rounds)
    return dict(result.arrays.to_torch_state_dict())


def test_the_app_writes_an_ordinary_run_and_the_strategy_gives_the_same_bits(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(server_app(load_model, load_data), {**CONFIG, "out": str(out)})
    directory = Run.open(out)
    assert [record["adjusted"] for record in directory.metrics] == [False, True, False]
    assert [len(record["device_reports"]) for record in directory.metrics] == [2, 2, 2]
    assert isinstance(fedmef.load(out), torch.nn.Module)
    state, strategy = directory.model_state(), strategy_state(CONFIG)
    assert state.keys() == strategy.keys()
    assert all(torch.equal(state[name], strategy[name]) for name in state)


def test_our_bytes_are_those_that_flower_counts_within_two_percent(tmp_path: Path) -> None:
    config: UserConfig = {**CONFIG, "out": str(tmp_path / "run")}
    devices = client_app(load_model, load_data)
    counted = {"down": 0, "up": 0}

    def count(message: Message, context: Context) -> Message:
        reply = devices(message, context)
        if message.metadata.message_type == TRAIN:
            for way, sent in (("down", message), ("up", reply)):
                # What Flower's `message_size_mod` adds up.
                counted[way] += sum(record.count_bytes() for record in sent.content.values())
        return reply

    server_app(load_model, load_data)(Loopback(dict(NODES), count, config), context(0, config))
    summary = Run.open(tmp_path / "run").summary
    assert summary["bytes_down"] <= counted["down"] <= 1.02 * summary["bytes_down"]
    assert summary["bytes_up"] <= counted["up"] <= 1.02 * summary["bytes_up"]


def test_an_app_goes_on_with_its_run_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run(server_app(load_model, load_data), {**CONFIG, "out": str(whole)})

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            raise RuntimeError("power cut")

    config: UserConfig = {**CONFIG, "out": str(stopped), "resume": True}
    with monkeypatch.context() as patch:
        patch.setattr("fedmef.federation.engines.flower.apps._tell", stop)
        with pytest.raises(RuntimeError, match="power cut"):
            run(server_app(load_model, load_data), config)
    with pytest.raises(UserError, match=r"seed = 0 there, 7 here"):
        run(server_app(load_model, load_data), {**config, "seed": 7})
    run(server_app(load_model, load_data), {**config, "min-devices": 2})
    records = Run.open(stopped).metrics
    assert len(records) == 3
    for field in ("bytes_down", "bytes_up"):  # devices kept their masks, and the server knows
        assert records[2][field] == Run.open(whole).metrics[2][field]
    assert (stopped / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    run(server_app(load_model, load_data), {**config, "rounds": 4})
    assert [record["adjusted"] for record in Run.open(stopped).metrics] == [False, True, False, False]


def little_on_the_server(partition_id: int | None = None) -> Dataset:
    data = load_data(partition_id)
    if partition_id is None:
        one = Split(data.train.images[:1], data.train.labels[:1])
        return dataclasses.replace(data, train=one)
    return data


def test_the_servers_training_data_are_not_used(tmp_path: Path) -> None:
    config: UserConfig = {**CONFIG, "rounds": 1}
    for name, data in {"little": little_on_the_server, "all": load_data}.items():
        out: UserConfig = {**config, "out": str(tmp_path / name)}
        devices = client_app(load_model, load_data)
        server_app(load_model, data)(Loopback(dict(NODES), devices, out), context(0, out))
        assert Run.open(tmp_path / name).metrics[0]["rejected"] == []
    little, everything = (tmp_path / name / "model.safetensors" for name in ("little", "all"))
    assert little.read_bytes() == everything.read_bytes()


def test_answers_of_a_repeated_attempt_are_not_counted_twice(caplog: pytest.LogCaptureFixture) -> None:
    record = {"round": 3, "devices": [0, 1], "attempts": 2, "train_loss": 0.5, "test_accuracy": None}
    lost = [{"device": device, "attempt": attempt} for device, attempt in ((0, 0), (1, 0), (1, 1))]
    with caplog.at_level("INFO", logger="flwr"):
        _tell({**record, "lost": lost, "device_reports": [{}, {}, {}]})
    assert "round 3: 1 of 2 devices answered" in caplog.text


def test_a_device_that_lost_its_masks_gets_all_of_them_in_the_same_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories = {device: tmp_path / f"memory-{device}" for device in (0, 1)}
    monkeypatch.setattr(
        "fedmef.federation.engines.flower.apps.mask_memory",
        lambda _, context: MaskMemory(memories[device_number(context)]),
    )

    def forget(record: dict[str, Any]) -> None:
        if record["round"] == 0:
            shutil.rmtree(memories[1])

    monkeypatch.setattr("fedmef.federation.engines.flower.apps._tell", forget)
    out = tmp_path / "run"
    run(server_app(load_model, load_data), {**CONFIG, "rounds": 4, "adjust-every": 5, "out": str(out)})
    records = Run.open(out).metrics
    answered = [[report["device"] for report in record["device_reports"]] for record in records]
    assert answered == [[0, 1]] * 4
    whole, again, third, values = (record["bytes_down"] for record in records)
    assert third == values < whole
    assert again == values + whole / 2
    assert not any(record["lost"] for record in records)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_strategy_runs_every_method(method: str) -> None:
    strategy_state({**CONFIG, "method": method, "rounds": 2, "adjust-until": 2})


def one_strategy(**settings: Any) -> FedMefStrategy:
    experiment = experiment_of({**CONFIG, **settings}, load_model, load_data)
    return FedMefStrategy(experiment, load_model(10, 1))


def one_round(strategy: FedMefStrategy, grid: Loopback) -> ArrayRecord | None:
    messages = strategy.configure_train(1, strategy.arrays(), ConfigRecord(), grid)
    return strategy.aggregate_train(1, grid.send_and_receive(messages))[0]


def test_the_strategy_refuses_what_every_run_refuses() -> None:
    with pytest.raises(UserError, match="noise_multiplier"):
        one_strategy(**{"noise-multiplier": 1.0, "clip-norm": 1.0})


def test_the_strategy_leaves_the_model_when_too_few_updates_can_be_used() -> None:
    devices = client_app(load_model, load_data)
    too_few: list[UserConfig] = [{"max-update-norm": 1e-9}, {"faults": "drop@0:1", "min-devices": 2}]
    for settings in too_few:
        grid = Loopback(dict(NODES), devices, {**CONFIG, **settings})
        assert one_round(one_strategy(**settings), grid) is None


def test_the_strategy_bears_a_node_that_answers_nonsense() -> None:
    devices = client_app(load_model, load_data)

    def app(message: Message, context: Context) -> Message:
        if message.metadata.message_type == TRAIN and device_number(context) == 1:
            return Message(RecordDict(), reply_to=message)
        return devices(message, context)

    assert one_round(one_strategy(), Loopback(dict(NODES), app, CONFIG)) is not None


def test_the_strategy_adds_its_noise_even_if_nobody_answers() -> None:
    private = {"noise-multiplier": 1.0, "clip-norm": 1.0, "adjust-until": 0, "deadline": 0.1}
    strategy = one_strategy(**private)
    before = strategy.arrays().to_torch_state_dict()
    grid = Loopback(dict(NODES), client_app(load_model, load_data), {**CONFIG, **private})
    strategy.configure_train(1, strategy.arrays(), ConfigRecord(), grid)
    after = strategy.aggregate_train(1, [])[0]
    assert after is not None
    changed = after.to_torch_state_dict()
    assert any(not torch.equal(changed[name], before[name]) for name in before)


def test_a_setting_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match="did you mean 'sparsity'"):
        experiment_of({"sparsty": 0.5}, load_model, load_data)


def test_ray_can_take_the_device_half() -> None:
    from ray import cloudpickle

    assert len(cloudpickle.dumps(client_app(load_model, load_data))) < 10_000  # type: ignore[no-untyped-call]
