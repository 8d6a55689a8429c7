"""Devices that fail: who does, what it costs, and that every engine loses the same updates."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import fedmef
from fedmef.errors import FedmefError, UserError
from fedmef.experiment.randomness import derive_seed
from fedmef.experiment.settings import Experiment, make_experiment
from fedmef.federation.api import one_thread
from fedmef.federation.collection import DeviceError, choose_devices
from fedmef.federation.engines import InlineEngine, prepared_model
from fedmef.federation.preparation import build_fleet
from fedmef.federation.server import Server
from fedmef.federation.simulated.faults import KINDS, Faults, corrupt, read_fault_plan
from fedmef.methods import Method, Plan
from fedmef.methods.base import Extras
from fedmef.runs.directory import Record, Run
from fedmef.wire import MessageError, decode, encode

SMALL: dict[str, Any] = {
    "width": 8,
    "devices": 8,
    "devices_per_round": 4,
    "local_epochs": 1,
    "batch_size": 64,
    "adjust_every": 1,
    "adjust_until": 9,
    "engine": "inline",
}
TINY: dict[str, Any] = {
    **SMALL,
    "width": 4,
    "dataset": "synthetic",
    "synthetic_size": 8,
    "synthetic_train": 160,
    "synthetic_test": 40,
    "rounds": 1,
}
MANY = "drop=0.3,slow=0.1,corrupt=0.05,kill=0.02"


def test_faults_are_read_from_text() -> None:
    faults = Faults.parse("drop=0.3, kill@3:7,slow=0.1")
    assert faults.shares == {"drop": 0.3, "slow": 0.1}
    assert faults.planned == {(3, 7): "kill"}
    assert faults.of(0, 3, 0, 7) == "kill"
    assert Faults.parse("") == Faults({}, {})


@pytest.mark.parametrize("text", ["drop", "drop=x", "explode=0.1", "drop=0.6,slow=0.6", "kill@3", "drop=-1"])
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="faults = "):
        make_experiment({"faults": text})


def test_faults_come_as_often_as_asked_and_always_in_the_same_place() -> None:
    faults = Faults.parse(MANY)
    drawn = [faults.of(1, number // 10, 0, number % 10) for number in range(4000)]
    assert drawn == [faults.of(1, number // 10, 0, number % 10) for number in range(4000)]
    shares = {kind: drawn.count(kind) / len(drawn) for kind in KINDS}
    assert shares == pytest.approx(Faults.parse(MANY).shares, abs=0.02)
    assert drawn != [faults.of(1, number // 10, 1, number % 10) for number in range(4000)]


def test_a_plan_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('[[fault]]\nround = 3\ndevice = 7\nfault = "kill"\n')
    assert read_fault_plan(file) == "kill@3:7"
    for wrong in ("[[fault]]\nround = 3\n", "nonsense", '[[fault]]\nround=1\ndevice=2\nfault="x"', "fault=3"):
        file.write_text(wrong)
        with pytest.raises(UserError, match="--fault-plan"):
            read_fault_plan(file)
    with pytest.raises(UserError, match="No such file"):
        read_fault_plan(tmp_path / "nowhere")


def test_a_corrupted_answer_is_never_an_answer() -> None:
    answer = encode({}, {"device": 1})
    for device in range(60):
        with pytest.raises(MessageError):
            decode(corrupt(answer, 0, 0, device))


def test_a_further_attempt_takes_other_devices_while_there_are_others() -> None:
    experiment = Experiment(devices=8, devices_per_round=3)
    first = choose_devices(experiment, 4)
    second = choose_devices(experiment, 4, 1, set(first))
    assert not set(first) & set(second)
    third = choose_devices(experiment, 4, 2, {*first, *second})
    assert set(range(8)) - {*first, *second} <= set(third)
    assert len(third) == 3


def comparable(run: Run) -> list[dict[str, Any]]:
    """What does not depend on the engine: not the time, nor why a device was lost, which its engine knows."""
    fields = ("train_loss", "test_accuracy", "bytes_down", "bytes_up", "devices", "rejected", "attempts")
    return [
        {field: record[field] for field in fields}
        | {"lost": [(entry["device"], entry["attempt"]) for entry in record["lost"]]}
        for record in run.metrics
    ]


@pytest.fixture(scope="module")
def faulty_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = {**SMALL, "rounds": 4, "faults": f"{MANY},kill@0:1,corrupt@1:1,slow@2:2"}
    return fedmef.run(Experiment(**settings), tmp_path_factory.mktemp("runs") / "inline")


def test_a_faulty_run_goes_on_and_names_who_failed_and_why(faulty_run: Run) -> None:
    for record in faulty_run.metrics:
        failed = {entry["device"] for entry in record["lost"] + record["rejected"]}
        assert failed <= set(range(8))
        answered = len(record["devices"]) - sum(
            entry["attempt"] == record["attempts"] - 1 for entry in record["lost"] + record["rejected"]
        )
        assert answered >= 2
    reasons = {entry["reason"] for record in faulty_run.metrics for entry in record["lost"]}
    assert any("dropped out" in reason for reason in reasons)
    assert faulty_run.summary["lost_updates"] == sum(len(record["lost"]) for record in faulty_run.metrics)


def test_processes_lose_the_same_devices_and_end_in_the_same_bits(faulty_run: Run, tmp_path: Path) -> None:
    settings = {**faulty_run.experiment.model_dump(), "engine": "processes", "workers": 2}
    run = fedmef.run(Experiment(**settings), tmp_path / "run")
    assert comparable(run) == comparable(faulty_run)
    model = "model.safetensors"
    assert (run.path / model).read_bytes() == (faulty_run.path / model).read_bytes()


def test_weights_are_renormalised_over_those_that_answered(tmp_path: Path) -> None:
    """Losing a device is as if it had never been chosen."""
    three = Experiment(**{**SMALL, "devices": 3, "devices_per_round": 3, "rounds": 1, "faults": "drop@0:1"})
    run = fedmef.run(three, tmp_path / "run")
    (record,) = run.metrics
    assert [entry["device"] for entry in record["lost"]] == [1]

    fleet = build_fleet(three)
    server = Server(fleet.method, prepared_model(three, fleet.method, 10, 1))
    plan = fleet.method.plan(0)
    with one_thread():
        answers = InlineEngine(fleet).train(server.broadcast(plan, [0, 2]))
        updates, _ = server.check(
            {d: answer for d, answer in answers.items() if isinstance(answer, bytes)}, plan
        )
        before = {name: tensor.clone() for name, tensor in server.model.state_dict().items()}
        server.absorb(updates, plan)
    first, second = updates
    share = first.samples / (first.samples + second.samples)
    assert share != 0.5
    for name, tensor in server.model.state_dict().items():
        if name in first.weights:
            mean = share * first.weights[name] + (1 - share) * second.weights[name]
            torch.testing.assert_close(tensor, mean)
            assert not torch.equal(tensor, before[name])
    server.adjust(plan)
    state = run.model_state()
    assert all(torch.equal(state[name], tensor) for name, tensor in server.model.state_dict().items())


def test_too_few_devices_stop_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 2, "min_devices": 4, "round_attempts": 2, "faults": "drop@1:3,slow@1:4"}
    settings |= {"devices": 5, "devices_per_round": 4}
    with pytest.raises(FedmefError, match=r"round 2: \d of 4 devices .* where 4 are needed, 2 times over"):
        fedmef.run(Experiment(**settings), tmp_path / "run")
    run = fedmef.resume(tmp_path / "run", {"min_devices": 2})
    assert run.summary["rounds"] == 2
    assert run.summary["lost_updates"] > 0


def test_a_round_below_min_devices_is_repeated_with_others(tmp_path: Path) -> None:
    first = choose_devices(Experiment(**SMALL), 0)
    faults = ",".join(f"drop@0:{device}" for device in first)
    run = fedmef.run(Experiment(**SMALL, rounds=1, faults=faults), tmp_path / "run")
    (record,) = run.metrics
    assert record["attempts"] == 2
    assert not set(record["devices"]) & set(first)
    assert run.summary["repeated_attempts"] == 1
    assert record["bytes_down"] > 1.5 * record["bytes_up"]


def test_a_broken_device_that_is_alone_in_a_round_is_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**TINY, "devices_per_round": 1, "method": f"{__name__}:Broken"}
    (first,) = choose_devices(Experiment(**settings), 0)
    monkeypatch.setattr(Broken, "devices", (first,))
    (record,) = fedmef.run(Experiment(**settings), tmp_path / "run").metrics
    assert record["attempts"] == 2
    assert [(entry["device"], entry["reason"]) for entry in record["lost"]] == [
        (first, f"device {first} failed: MemoryError: on purpose")
    ]


PRIVATE: dict[str, Any] = {"noise_multiplier": 1.0, "clip_norm": 1.0, "adjust_until": 0}


@pytest.mark.parametrize(
    ("changes", "attempts"),
    [
        ({}, 2),  # others prove it
        ({"round_attempts": 1}, 1),
        ({"devices_per_round": 8}, 1),  # there are no others
        ({**PRIVATE, "devices_per_round": 4}, 1),  # none will be asked
    ],
)
def test_an_error_of_all_devices_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], attempts: int
) -> None:
    monkeypatch.setattr(Broken, "devices", tuple(range(8)))
    monkeypatch.setattr(Broken, "asked", [])
    settings = {**TINY, "devices_per_round": 2, "method": f"{__name__}:Broken", **changes}
    with pytest.raises(FedmefError, match=r"^device \d failed: MemoryError: on purpose$") as stopped:
        fedmef.run(Experiment(**settings), tmp_path / "run")
    assert isinstance(stopped.value.__cause__, DeviceError)
    assert len(set(Broken.asked)) == attempts * len(choose_devices(Experiment(**settings), 0))


def test_a_private_round_goes_on_without_its_only_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broken, "devices", tuple(range(8)))
    settings = {
        **SMALL,
        "devices_per_round": 1,
        "rounds": 1,
        "method": f"{__name__}:Broken",
        "adjust_until": 0,
    }
    settings |= {"noise_multiplier": 1.0, "clip_norm": 1.0}
    seed = next(s for s in range(99) if len(choose_devices(Experiment(**settings, seed=s), 0)) == 1)
    (record,) = fedmef.run(Experiment(**settings, seed=seed), tmp_path / "run").metrics
    assert (record["attempts"], len(record["lost"])) == (1, 1)


@pytest.mark.parametrize(
    ("engine", "damage"),
    [
        ("inline", Path.unlink),
        ("inline", lambda file: file.write_bytes(b"damaged")),
        ("processes", Path.unlink),
    ],
)
def test_lost_masks_cost_bytes_and_no_update(
    tmp_path: Path, engine: str, damage: Callable[[Path], object]
) -> None:
    settings = {**TINY, "rounds": 4, "devices": 5, "workers": 1}

    def spoil(record: Record) -> None:
        if record["round"] == 1:
            for file in (tmp_path / "spoilt" / "masks").iterdir():
                damage(file)

    whole = fedmef.run(Experiment(**settings), tmp_path / "whole")
    spoilt = fedmef.run(Experiment(**{**settings, "engine": engine}), tmp_path / "spoilt", watch=spoil)
    model = "model.safetensors"
    assert (spoilt.path / model).read_bytes() == (whole.path / model).read_bytes()
    assert all(record["lost"] == [] and record["attempts"] == 1 for record in spoilt.metrics)
    more = [a["bytes_down"] - b["bytes_down"] for a, b in zip(spoilt.metrics, whole.metrics, strict=True)]
    assert more[2] > 0
    assert (more[0], more[1], more[3]) == (0, 0, 0)


class Broken(Method):
    """Some devices always raise."""

    devices: tuple[int, ...] = ()
    asked: ClassVar[list[int]] = []

    def train(self, local: Any, plan: Plan) -> Extras:
        seeds = [derive_seed(self.experiment.seed, "device", plan.round, device) for device in range(8)]
        device = seeds.index(torch.initial_seed())
        self.asked.append(device)
        if device in self.devices:
            raise MemoryError("on purpose")
        return super().train(local, plan)


class Moody(Method):
    """Device 0 raises, device 1 hangs, device 2 dies of its own, in round 0."""

    def train(self, local: Any, plan: Plan) -> Extras:
        moods: list[Callable[[], object]] = [
            lambda: 1 / 0,
            lambda: time.sleep(600),
            lambda: os.kill(os.getpid(), signal.SIGKILL),
        ]
        for device, mood in enumerate(moods):
            if torch.initial_seed() == derive_seed(self.experiment.seed, "device", 0, device):
                mood()
        return super().train(local, plan)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "flower"])
def test_a_device_that_raises_hangs_or_is_killed_costs_its_own_update(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "flower":
        pytest.importorskip("flwr")
        pytest.importorskip("ray")
    monkeypatch.chdir(Path(__file__).parent)
    settings = {**SMALL, "devices": 5, "devices_per_round": 5, "rounds": 2, "method": "test_faults:Moody"}
    settings |= {"engine": engine, "workers": 2, "deadline": 20.0, "min_devices": 2}
    run = fedmef.run(Experiment(**settings), tmp_path / "run")
    first, second = run.metrics
    reasons = {entry["device"]: entry["reason"] for entry in first["lost"]}
    assert reasons.keys() == {0, 1, 2}
    assert "ZeroDivisionError" in reasons[0]
    assert "no answer within the deadline of 20 s" in reasons[1]
    assert "its worker process died" in reasons[2]
    assert second["lost"] == []


@pytest.mark.slow
def test_an_injected_slow_device_really_hangs_until_the_deadline(tmp_path: Path) -> None:
    settings = {**SMALL, "devices": 3, "devices_per_round": 3, "rounds": 1, "faults": "slow@0:1"}
    settings |= {"engine": "processes", "workers": 1, "deadline": 10.0}
    (record,) = fedmef.run(Experiment(**settings), tmp_path / "run").metrics
    assert [entry["reason"] for entry in record["lost"]] == ["no answer within the deadline of 10 s"]


def sleepy_network(classes: int, channels: int) -> nn.Module:
    class Sleepy(nn.Sequential):
        def forward(self, input: Any) -> Any:  # noqa: A002
            if self.training:
                time.sleep(0.2)
            return super().forward(input)  # type: ignore[no-untyped-call]

    return Sleepy(nn.Conv2d(channels, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


def test_inline_an_answer_after_the_deadline_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    settings = {**SMALL, "width": None, "method": "fedavg", "model": "test_faults:sleepy_network"}
    settings |= {"rounds": 1, "deadline": 0.1, "round_attempts": 2}
    with pytest.raises(FedmefError, match=r"2 times over .*no answer within the deadline of 0\.1 s"):
        fedmef.run(Experiment(**settings), tmp_path / "run")


def processes_of(group: int) -> list[str]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "-g", str(group)], capture_output=True, text=True, check=False
    )
    return listed.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_thirty_rounds_with_many_faults_end_near_the_faultless_accuracy(tmp_path: Path, seed: int) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "fedmef", "run", "--rounds", "30", "--seed", str(seed)]
    accuracy, began = {}, set[str]()
    for name, faults in {"faulty": ["--faults", MANY, "--workers", "2"], "faultless": []}.items():
        process = subprocess.Popen(
            [*command, "--engine", "processes", *faults, "--out", str(tmp_path / name)],
            env={**os.environ, "TMPDIR": str(scratch)},
            start_new_session=True,
        )
        deadline = time.monotonic() + 900
        while process.poll() is None and time.monotonic() < deadline:
            began |= set(processes_of(process.pid))
            time.sleep(0.2)
        assert process.poll() == 0
        for _ in range(50):  # Python's own resource tracker takes a moment
            if not processes_of(process.pid):
                break
            time.sleep(0.1)
        assert processes_of(process.pid) == []
        accuracy[name] = Run.open(tmp_path / name).summary["test_accuracy"]
    faulty = Run.open(tmp_path / "faulty").summary
    assert faulty["lost_updates"] > 80
    assert faulty["rejected_updates"] > 5
    assert accuracy["faulty"] > accuracy["faultless"] - 0.03
    assert list(scratch.glob("fedmef-*")) == []  # PyTorch makes a folder of its own
    ours = {f"torch_{process}_" for process in began}  # as PyTorch names what it shares
    assert [file for file in Path("/dev/shm").iterdir() if any(map(file.name.startswith, ours))] == []
