"""A fleet without Flower: real device processes, and a command that carries files."""

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import fedmef
from fedmef.data import load_dataset
from fedmef.errors import UserError
from fedmef.experiment.files import to_toml
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines.base import Lost
from fedmef.federation.simulated.fleet import partition
from fedmef.runs.directory import Run
from scripts.command_fleet import CommandEngine, main
from tests.federation.small import digest

EXPERIMENT = Experiment(
    devices=2, devices_per_round=2, rounds=3, adjust_every=1, local_epochs=1, width=8, backend="native"
)
DEVICE = f"{shlex.quote(sys.executable)} -m fedmef.device {{message}} {{answer}} --number {{device}}"


def write_shares(folder: Path) -> None:
    """The data of each device as a simulation would divide them."""
    data = load_dataset("digits")
    for device, share in enumerate(partition(EXPERIMENT, data)):
        (folder / f"data-{device}").mkdir()
        np.save(folder / f"data-{device}" / "images.npy", data.train.images[share])
        np.save(folder / f"data-{device}" / "labels.npy", data.train.labels[share])


def test_devices_by_a_command_end_in_the_bits_of_a_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shares(tmp_path)
    (tmp_path / "experiment.toml").write_text(to_toml(EXPERIMENT))
    command = f"{DEVICE} --data {tmp_path}/data-{{device}} --store {tmp_path}/held-{{device}}"
    out = tmp_path / "fleet"
    arguments = [str(tmp_path / "experiment.toml"), "--out", str(out), "--command", command]
    monkeypatch.setattr(sys, "argv", ["command_fleet", *arguments])
    main()
    fleet = Run.open(out)
    assert fleet.summary.lost_updates == 0
    assert [record.adjusted for record in fleet.rounds] == [False, True, False]
    inline = fedmef.run(EXPERIMENT.model_copy(update={"engine": "inline"}), tmp_path / "inline")
    assert digest(fleet.path) == digest(inline.path)
    sent = [record.bytes_down for record in fleet.rounds]
    assert sent[2] < sent[0]  # what a device keeps is not sent again


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("cp {message} {answer}", None),
        ("echo no power >&2; exit 3", "no power"),
        ("exit 3", "its command ended with 3"),
        ("true", "its command brought no answer"),
    ],
)
def test_a_command_that_brings_no_answer_costs_one_update(command: str, reason: str | None) -> None:
    only_one = f"if [ {{device}} = 1 ]; then {command}; else cp {{message}} {{answer}}; fi"
    answers = CommandEngine(only_one).train({0: b"zero", 1: b"one"})
    assert answers[0] == b"zero"
    if reason is None:
        assert answers[1] == b"one"
    else:
        assert isinstance(answers[1], Lost)
        assert answers[1].reason.startswith(reason)


def test_a_command_that_takes_too_long_is_ended() -> None:
    assert CommandEngine("sleep 600", deadline=0.5).train({1: b"one"}) == {1: Lost.too_late(0.5)}


def test_no_messages_need_no_command() -> None:
    assert CommandEngine("false").train({}) == {}


def test_a_device_that_keeps_nothing_is_sent_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shares(tmp_path)
    (tmp_path / "experiment.toml").write_text(to_toml(EXPERIMENT.model_copy(update={"rounds": 2})))
    command = f"{DEVICE} --data {tmp_path}/data-{{device}}"
    arguments = [str(tmp_path / "experiment.toml"), "--out", str(tmp_path / "fleet"), "--command", command]
    monkeypatch.setattr(sys, "argv", ["command_fleet", *arguments])
    main()
    fleet = Run.open(tmp_path / "fleet")
    assert fleet.summary.lost_updates == 0
    assert fleet.summary.repeated_attempts == 0
    with pytest.raises(UserError, match="which a simulation has not; resume it on its fleet"):
        fedmef.resume(fleet.path, {"rounds": 3})
