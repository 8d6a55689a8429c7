"""What an injected fault does to a device, and that every engine loses the same updates."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.device.choice import missing_kernels
from fedmef.errors import MessageError
from fedmef.experiment.settings import Experiment
from fedmef.federation.simulated.faults import InjectedFault, Killed, TooLate, corrupt, raise_fault
from fedmef.runs.directory import Run
from fedmef.wire.container import decode, encode
from tests.federation.small import SMALL as BASE
from tests.federation.small import digest

SMALL: dict[str, Any] = {
    **BASE,
    "devices": 8,
    "devices_per_round": 4,
    "adjust_every": 1,
    "adjust_until": 9,
}
# Their workers differ: the shipped device on native, a process with all of the simulation on torch.
BACKENDS = [
    pytest.param("native", marks=pytest.mark.skipif(bool(missing_kernels()), reason="no kernels")),
    pytest.param("torch", marks=pytest.mark.slow),
]
MANY = "drop=0.3,slow=0.1,corrupt=0.05,kill=0.02"


def test_a_fault_says_what_it_is() -> None:
    raise_fault(None)
    raise_fault("corrupt")  # only its answer is wrong
    for fault, kind, reason in (
        ("drop", InjectedFault, "dropped out"),
        ("slow", TooLate, "too late"),
        ("kill", Killed, "killed"),
    ):
        with pytest.raises(kind, match=reason):
            raise_fault(fault)


def test_a_corrupted_answer_is_never_an_answer_and_always_the_same() -> None:
    answer = encode({}, {"device": 1})
    lengths = set()
    for device in range(60):
        damaged = corrupt(answer, 0, 0, device)
        assert damaged == corrupt(answer, 0, 0, device)
        lengths.add(len(damaged) < len(answer))
        with pytest.raises(MessageError):
            decode(damaged)
    assert lengths == {True, False}


def comparable(run: Run) -> list[dict[str, Any]]:
    """What does not depend on the engine: not the time, nor why a device was lost, which its engine knows."""
    fields = {"train_loss", "test_accuracy", "bytes_down", "bytes_up", "devices", "rejected", "attempts"}
    return [
        record.model_dump(include=fields)
        | {"lost": [(failed.device, failed.attempt) for failed in record.lost]}
        for record in run.rounds
    ]


@pytest.fixture(scope="module", params=BACKENDS)
def faulty_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = {**SMALL, "rounds": 4, "faults": f"{MANY},kill@0:1,corrupt@1:1,slow@2:2"}
    settings |= {"backend": request.param, "attackers": 0.2, "attack_scale": 0.5}
    return fedmef.run(Experiment(**settings), tmp_path_factory.mktemp("runs") / "inline")


def test_a_faulty_run_continues_and_names_who_failed_and_why(faulty_run: Run) -> None:
    for record in faulty_run.rounds:
        failures = record.lost + record.rejected
        assert {failed.device for failed in failures} <= set(range(8))
        failed_last = sum(failed.attempt == record.attempts - 1 for failed in failures)
        assert len(record.devices) - failed_last >= 2
    reasons = {failed.reason for record in faulty_run.rounds for failed in record.lost}
    assert any("dropped out" in reason for reason in reasons)
    assert faulty_run.summary.lost_updates == sum(len(record.lost) for record in faulty_run.rounds) > 0
    assert faulty_run.summary.rejected_updates == sum(len(r.rejected) for r in faulty_run.rounds)


@pytest.mark.parametrize("engine", ["processes", pytest.param("flower", marks=pytest.mark.slow)])
def test_every_engine_loses_the_same_devices_and_ends_in_the_same_bits(
    faulty_run: Run, tmp_path: Path, engine: str
) -> None:
    settings = {**faulty_run.experiment.model_dump(), "engine": engine, "workers": 2}
    run = fedmef.run(Experiment(**settings), tmp_path / "run")
    assert comparable(run) == comparable(faulty_run)
    assert digest(run.path) == digest(faulty_run.path)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_injected_slow_device_is_given_up_at_the_deadline(tmp_path: Path, backend: str) -> None:
    settings = {
        **SMALL,
        "backend": backend,
        "devices": 3,
        "devices_per_round": 3,
        "rounds": 1,
        "faults": "slow@0:1",
    }
    settings |= {"engine": "processes", "workers": 1, "deadline": 10.0}
    (record,) = fedmef.run(Experiment(**settings), tmp_path / "run").rounds
    assert [failed.reason for failed in record.lost] == ["no answer within the deadline of 10 s"]


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
        accuracy[name] = Run.open(tmp_path / name).summary.test_accuracy
    faulty = Run.open(tmp_path / "faulty").summary
    assert faulty.lost_updates > 80
    assert faulty.rejected_updates > 5
    assert accuracy["faulty"] > accuracy["faultless"] - 0.03
    assert list(scratch.glob("fedmef-*")) == []  # PyTorch makes a folder of its own
    ours = {f"torch_{process}_" for process in began}  # as PyTorch names what it shares
    assert [file for file in Path("/dev/shm").iterdir() if any(map(file.name.startswith, ours))] == []
