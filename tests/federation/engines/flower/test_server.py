"""The server's half of an app, with devices on a Grid without a network and the template's functions."""

import dataclasses
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict, UserConfig

import fedmef
from fedmef.data import Dataset, Split
from fedmef.errors import FedmefError, UserError
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines.flower import client_app, server_app
from fedmef.federation.engines.flower.server import Log, experiment_of
from fedmef.federation.engines.flower.template.app.data import SHARES, load_data
from fedmef.federation.engines.flower.template.app.model import load_model
from fedmef.federation.engines.flower.translation import TRAIN, content_of, device_number
from fedmef.federation.preparation import prepare
from fedmef.federation.simulated.fleet import partition
from fedmef.methods import METHODS
from fedmef.runs.directory import Run
from fedmef.runs.records import Failed, Round
from fedmef.wire.broadcast import NETWORK
from fedmef.wire.container import MESSAGE_VERSION, decode
from fedmef.wire.store import Store
from tests.federation.engines.flower.loopback import Loopback, context
from tests.federation.small import digest
from tests.runs.written import a_round

CONFIG: UserConfig = {"devices": 2, "devices-per-round": 2, "rounds": 3, "adjust-every": 1, "local-epochs": 1}
NODES: dict[int, int | None] = {9: 0, 5: 1}


def run(config: UserConfig, app: Any = None, data: Any = load_data) -> Run:
    """The template's app on two devices."""
    devices = app or client_app(load_data)
    server_app(load_model, data)(Loopback(dict(NODES), devices, config), context(0, config))
    return Run.open(Path(str(config["out"])))


def test_the_app_writes_an_ordinary_run(tmp_path: Path) -> None:
    directory = run({**CONFIG, "out": str(tmp_path / "run")})
    assert [record.adjusted for record in directory.rounds] == [False, True, False]
    assert [len(record.device_reports) for record in directory.rounds] == [2, 2, 2]
    assert isinstance(fedmef.load(directory.path), torch.nn.Module)
    assert directory.experiment.model.endswith("template.app.model:load_model")
    assert not (directory.path / "held").exists()


def shares(partition_id: int | None = None) -> Dataset:
    """As a simulation of two devices would divide the data."""
    data = load_data()
    if partition_id is None:
        return data
    experiment = Experiment(devices=2, devices_per_round=2)
    share = partition(experiment, data)[partition_id]
    train = Split(data.train.images[share], data.train.labels[share])
    return Dataset("digits", train, data.test, classes=10)


def test_a_fleet_ends_in_the_bits_of_the_simulation(tmp_path: Path) -> None:
    """The same data on each device, whatever carries the messages."""
    config: UserConfig = {**CONFIG, "out": str(tmp_path / "fleet")}
    fleet = run(config, client_app(shares))
    simulated = fleet.experiment.model_copy(update={"engine": "inline"})
    inline = fedmef.run(simulated, tmp_path / "inline", dataset=load_data())
    assert digest(inline.path) == digest(fleet.path)
    for one, other in zip(inline.rounds, fleet.rounds, strict=True):
        assert (one.bytes_down, one.bytes_up) == (other.bytes_down, other.bytes_up)


def test_our_bytes_are_those_that_flower_counts_within_two_percent(tmp_path: Path) -> None:
    devices = client_app(load_data)
    counted = {"down": 0, "up": 0}

    def count(message: Message, context: Context) -> Message:
        # What Flower's `message_size_mod` adds up; a device takes the content out of its message.
        down = sum(record.count_bytes() for record in message.content.values())
        reply = devices(message, context)
        if message.metadata.message_type == TRAIN:
            counted["down"] += down
            counted["up"] += sum(record.count_bytes() for record in reply.content.values())
        return reply

    summary = run({**CONFIG, "out": str(tmp_path / "run")}, count).summary
    assert summary.bytes_down <= counted["down"] <= 1.02 * summary.bytes_down
    assert summary.bytes_up <= counted["up"] <= 1.02 * summary.bytes_up


def test_a_message_to_a_device_that_has_the_network_does_not_contain_it(tmp_path: Path) -> None:
    devices = client_app(load_data)
    brought: dict[int, list[bool]] = {0: [], 1: []}

    def note(message: Message, context: Context) -> Message:
        if message.metadata.message_type == TRAIN:
            arrays, _ = decode(content_of(message), MESSAGE_VERSION)
            brought[device_number(context)].append(NETWORK in arrays)
        return devices(message, context)

    run({**CONFIG, "out": str(tmp_path / "run")}, note)
    assert brought == {0: [True, False, False], 1: [True, False, False]}


class PowerCut(Log):
    def round_done(self, record: Round, model: object = None) -> None:
        if record.round == 1:
            raise RuntimeError("power cut")


def test_an_app_resumes_its_run_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run({**CONFIG, "out": str(tmp_path / "whole")})
    config: UserConfig = {**CONFIG, "out": str(tmp_path / "stopped"), "resume": True}
    with monkeypatch.context() as patch:
        patch.setattr("fedmef.federation.engines.flower.server.Log", PowerCut)
        with pytest.raises(RuntimeError, match="power cut"):
            run(config)
    with pytest.raises(UserError, match=r"seed = 0 there, 7 here"):
        run({**config, "seed": 7})
    stopped = run({**config, "min-devices": 2})
    assert len(stopped.rounds) == 3
    # Devices kept what they held, and the server knows.
    assert stopped.rounds[2].bytes_down == whole.rounds[2].bytes_down
    assert stopped.rounds[2].bytes_up == whole.rounds[2].bytes_up
    assert digest(stopped.path) == digest(whole.path)
    longer = run({**config, "rounds": 4})
    assert [record.adjusted for record in longer.rounds] == [False, True, False, False]


def little_on_the_server(partition_id: int | None = None) -> Dataset:
    """One image, and the statistics of all: those are the server's part."""
    data = load_data(partition_id)
    if partition_id is None:
        one = Split(data.train.images[:1], data.train.labels[:1])
        return dataclasses.replace(data, train=one, known_statistics=data.statistics)
    return data


def test_the_servers_training_data_are_not_used(tmp_path: Path) -> None:
    config: UserConfig = {**CONFIG, "rounds": 1}
    runs = [
        run({**config, "out": str(tmp_path / name)}, data=data)
        for name, data in (("little", little_on_the_server), ("all", load_data))
    ]
    assert all(directory.rounds[0].rejected == [] for directory in runs)
    assert digest(runs[0].path) == digest(runs[1].path)


def test_answers_of_a_repeated_attempt_are_not_counted_twice(caplog: pytest.LogCaptureFixture) -> None:
    lost = [Failed(device=d, attempt=attempt, reason="late") for d, attempt in ((0, 0), (1, 0), (1, 1))]
    record = a_round(3, devices=[0, 1], attempts=2, train_loss=0.5, test_accuracy=None, lost=lost)
    with caplog.at_level("INFO", logger="flwr"):
        Log().round_done(record)
        Log().round_done(a_round(4, test_accuracy=0.25))
    assert "round 4: 1 of 2 devices answered, loss 0.5" in caplog.text
    assert "round 5: 2 of 2 devices answered, loss 1.0, test accuracy 25.00%" in caplog.text


def test_a_device_that_lost_its_store_is_sent_everything_again_in_the_same_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = {device: tmp_path / f"store-{device}" for device in (0, 1)}
    monkeypatch.setattr(
        "fedmef.federation.engines.flower.client.store_of",
        lambda context: Store(stores[device_number(context)]),
    )

    class Forgetting(Log):
        def round_done(self, record: Round, model: object = None) -> None:
            if record.round == 0:
                shutil.rmtree(stores[1])

    monkeypatch.setattr("fedmef.federation.engines.flower.server.Log", Forgetting)
    out = str(tmp_path / "run")
    records = run({**CONFIG, "rounds": 4, "adjust-every": 5, "out": out}).rounds
    answered = [sorted(report.device for report in record.device_reports) for record in records]
    assert answered == [[0, 1]] * 4
    whole, again, third, values = (record.bytes_down for record in records)
    assert third == values < whole
    assert again == values + whole / 2
    assert not any(record.lost for record in records)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_an_app_runs_every_method(method: str, tmp_path: Path) -> None:
    config: UserConfig = {**CONFIG, "method": method, "rounds": 2, "adjust-until": 2, "learning-rate": 0.1}
    directory = run({**config, "out": str(tmp_path / "run")})
    assert directory.summary.lost_updates == directory.summary.rejected_updates == 0


def test_what_every_run_refuses_is_refused(tmp_path: Path) -> None:
    private: UserConfig = {"noise-multiplier": 1.0, "clip-norm": 1.0}
    with pytest.raises(UserError, match="noise_multiplier"):
        run({**CONFIG, **private, "out": str(tmp_path / "run")})
    assert not (tmp_path / "run").exists()


def test_a_run_stops_when_too_few_updates_can_be_used(tmp_path: Path) -> None:
    config: UserConfig = {
        **CONFIG,
        "max-update-norm": 1e-9,
        "round-attempts": 2,
        "out": str(tmp_path / "run"),
    }
    with pytest.raises(FedmefError, match=r"0 of 2 devices .*above max_update_norm"):
        run(config)


def test_a_node_that_answers_nonsense_costs_its_update_only(tmp_path: Path) -> None:
    devices = client_app(load_data)

    def app(message: Message, context: Context) -> Message:
        if message.metadata.message_type == TRAIN and device_number(context) == 1:
            return Message(RecordDict(), reply_to=message)
        return devices(message, context)

    for record in run({**CONFIG, "out": str(tmp_path / "run")}, app).rounds:
        assert [failed.device for failed in record.lost] == [1]
        assert [report.device for report in record.device_reports] == [0]


def test_a_private_round_adds_its_noise_even_if_nobody_answers(tmp_path: Path) -> None:
    private: UserConfig = {"noise-multiplier": 1.0, "clip-norm": 1.0, "adjust-until": 0, "deadline": 0.1}

    def silent(message: Message, context: Context) -> Message:
        if message.metadata.message_type == TRAIN:
            return Message(RecordDict(), reply_to=message)
        return client_app(load_data)(message, context)

    config: UserConfig = {**CONFIG, **private, "rounds": 1, "out": str(tmp_path / "run")}
    directory = run(config, silent)
    (record,) = directory.rounds
    assert (len(record.lost), record.attempts) == (2, 1)
    before = prepare(directory.experiment, load_data()).model.state
    after = directory.model().state
    assert any((after[name] != array).any() for name, array in before.items() if "mask" not in name)


def test_faults_and_attackers_are_of_simulations_only(tmp_path: Path) -> None:
    """A device on a fleet has none, whatever a configuration says."""
    config: UserConfig = {**CONFIG, "rounds": 1}
    plain = run({**config, "out": str(tmp_path / "plain")})
    asked = run({**config, "faults": "drop=1.0", "attackers": 0.5, "out": str(tmp_path / "asked")})
    assert asked.summary.lost_updates == 0
    assert digest(asked.path) == digest(plain.path)


def test_the_template_divides_the_digits_over_its_devices() -> None:
    parts = [load_data(device).train for device in range(SHARES)]
    assert sum(map(len, parts)) == len(load_data().train)


def test_a_setting_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match="did you mean 'sparsity'"):
        experiment_of({"sparsty": 0.5}, load_model, load_data)


WAITS = """
from fedmef.federation.engines.flower.server import ending_with_flower
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Flower's own, which a run takes for a wish to finish the round
with ending_with_flower():
    print("waits", flush=True)
    time.sleep(60)
"""
STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAITS!r}])"


def test_an_app_ends_with_the_superexec_that_started_it() -> None:
    """The SuperLink was killed, and a new one may start the run's next app."""
    with subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE) as superexec:
        assert superexec.stdout is not None
        assert superexec.stdout.readline() == b"waits\n"
        superexec.kill()
        started = time.monotonic()
        assert superexec.stdout.read() == b""  # nobody is left to write
        assert time.monotonic() - started < 30
