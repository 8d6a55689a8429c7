"""Worker processes: a device that dies, hangs or lies costs its own update, and its worker is replaced.

All of it on PyTorch's workers and on the shipped device, which is the worker of the native backend.
"""

import dataclasses
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import fedmef
from fedmef.device.cgroup import missing_groups
from fedmef.device.choice import missing_kernels
from fedmef.device.process import ANSWER, DONE
from fedmef.errors import FedmefError, FedmefWarning
from fedmef.experiment.settings import Experiment
from fedmef.federation.engines import Lost, process_limit, processes
from fedmef.federation.engines.light import Devices, LightWorker
from fedmef.federation.engines.processes import RESTARTS, ProcessEngine, WorkerError
from fedmef.federation.engines.spawned import FAILED, SpawnedWorker, work
from fedmef.federation.engines.worker import Worker
from fedmef.federation.preparation import open_dataset, prepare
from fedmef.federation.server import Server
from fedmef.federation.simulated.attack import attackers
from fedmef.federation.simulated.fleet import Fleet
from fedmef.runs.records import DeviceReport, Failed
from fedmef.wire.store import Store
from tests.federation.small import TINY as INLINE
from tests.federation.small import workers

TINY: dict[str, Any] = {**INLINE, "devices": 4, "engine": "processes", "workers": 1}
HUNGRY = "tests.federation.hungry:Hungry"

needs_kernels = pytest.mark.skipif(bool(missing_kernels()), reason="the native kernels are not built")
needs_groups = pytest.mark.skipif(bool(missing_groups()), reason="no control groups can be made here")
native = pytest.param("native", marks=needs_kernels)
slow_torch = pytest.param("torch", marks=pytest.mark.slow)
Name = Literal["torch", "native"]


class Simulation:
    """A fleet, and the messages of a round for it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        prepared = prepare(Experiment(**{**TINY, **settings}))
        self.experiment = prepared.experiment
        self.server = Server(self.experiment, prepared.model)
        self.fleet = Fleet.build(self.experiment, prepared.dataset, Store(folder / "held"))

    def messages(self, *devices: int, round_number: int = 0) -> dict[int, bytes]:
        return self.server.broadcast(self.server.job(round_number), devices)


def one_worker(engine: ProcessEngine) -> Any:
    (worker,) = engine._workers
    return worker


def peak_memory(engine: ProcessEngine) -> int:
    """Of the first device that answered."""
    report = engine.reports[0]
    assert isinstance(report, DeviceReport)
    return report.peak_memory


def lost_reason(answer: bytes | Lost) -> str:
    assert isinstance(answer, Lost)
    return answer.reason


# Which workers there are.


@needs_kernels
def test_the_worker_of_the_native_backend_is_the_shipped_device(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path)
    with ProcessEngine(simulation.fleet, 1) as engine:
        (process,) = workers()
        answers = engine.train(simulation.messages(0, 3))
        command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        loaded = Path(f"/proc/{process}/maps").read_text()
    assert b"fedmef.device" in command
    assert "_kernels" in loaded
    assert not [name for name in ("libtorch", "pydantic", "sklearn") if name in loaded]
    assert answers == {device: simulation.fleet.train(device, simulation.messages(0)[0]) for device in (0, 3)}
    assert workers() == []


@needs_kernels
def test_the_shipped_device_takes_a_fraction_of_the_memory_of_a_worker_with_pytorch(tmp_path: Path) -> None:
    peaks = {}
    for backend in ("native", "torch"):
        (tmp_path / backend).mkdir()
        simulation = Simulation(tmp_path / backend, backend=backend)
        with ProcessEngine(simulation.fleet, 1) as engine:
            engine.train(simulation.messages(1))
            peaks[backend] = peak_memory(engine)
            assert (type(one_worker(engine)) is LightWorker) == (backend == "native")
    assert peaks["native"] < 64_000_000
    assert peaks["native"] < peaks["torch"] / 3


@needs_kernels
def test_a_method_that_only_the_script_has_needs_a_worker_that_has_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpawnedWorker, "start", lambda *arguments: pytest.fail("as it should"))
    simulation = Simulation(tmp_path)
    own = simulation.experiment.model_copy(update={"method": "__main__:Own"})
    with pytest.raises(pytest.fail.Exception, match="as it should"):
        ProcessEngine(dataclasses.replace(simulation.fleet, experiment=own), 1)


# Devices that fail.


@pytest.mark.parametrize("backend", [native, "torch"])
def test_faults_and_attackers_cost_and_change_what_they_do_inline(tmp_path: Path, backend: Name) -> None:
    faults = "drop@0:0,kill@0:1,slow@0:2,corrupt@0:3"
    settings = {"backend": backend, "devices": 8, "attackers": 0.5, "faults": faults}
    simulation = Simulation(tmp_path, **settings)
    attacking = min(attackers(0.5, 8, 0) - {0, 1, 2, 3})
    messages = simulation.messages(0, 1, 2, 3, attacking)
    with ProcessEngine(simulation.fleet, 1) as engine:
        answers = engine.train(messages)
        assert list(answers) == [0, 1, 2, 3, attacking]
        assert lost_reason(answers[0]) == "dropped out (injected)"
        assert "its worker process died" in lost_reason(answers[1])
        assert lost_reason(answers[2]) == "too late (injected)"
        for device in (3, attacking):
            assert answers[device] == simulation.fleet.train(device, messages[device])
            assert answers[device] != simulation.fleet.train_honestly(device, messages[device])
        assert [report.device for report in engine.reports] == [3, attacking]


@needs_kernels
def test_when_every_device_drops_out_nobody_waits(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path, faults="drop=1")
    with ProcessEngine(simulation.fleet, 1) as engine:
        answers = engine.train(simulation.messages(0, 1))
        assert {lost_reason(answer) for answer in answers.values()} == {"dropped out (injected)"}
        assert engine.train({}) == {}


@pytest.mark.parametrize("backend", [native, slow_torch])
def test_a_worker_that_somebody_kills_costs_one_update(tmp_path: Path, backend: Name) -> None:
    simulation = Simulation(tmp_path, backend=backend)
    with ProcessEngine(simulation.fleet, 1) as engine:
        (killed,) = workers()
        os.kill(killed, signal.SIGKILL)
        answers = engine.train(simulation.messages(0, 1, 2))
        assert "its worker process died: killed" in lost_reason(answers[0])
        assert [type(answers[device]) for device in (1, 2)] == [bytes, bytes]
        assert killed not in workers()
        assert isinstance(engine.train(simulation.messages(0))[0], bytes)


@needs_kernels
def test_a_worker_that_is_stopped_costs_one_update_however_long_its_message(tmp_path: Path) -> None:
    """It does not even read its message, and the pipe has room for a part of that only."""
    simulation = Simulation(tmp_path, width=64)
    messages = simulation.messages(0, 1)
    assert len(messages[0]) > 2**17
    with ProcessEngine(simulation.fleet, 1) as engine:
        (stopped,) = workers()
        os.kill(stopped, signal.SIGSTOP)
        engine._deadline = 0.5
        refused = engine.train({0: messages[0]})
        engine._deadline = 60.0
        assert refused == {0: Lost.too_late(0.5)}
        assert isinstance(engine.train({1: messages[1]})[1], bytes)
        assert stopped not in workers()


@pytest.mark.parametrize("backend", [native, slow_torch])
def test_an_injected_slow_device_is_given_up_at_the_deadline_and_no_other(
    tmp_path: Path, backend: Name
) -> None:
    simulation = Simulation(tmp_path, backend=backend, faults="slow@0:1")
    with ProcessEngine(simulation.fleet, 1) as engine:
        engine._deadline = 0.2
        assert engine.train(simulation.messages(1)) == {1: Lost.too_late(0.2)}
        engine._deadline = 60.0
        assert isinstance(engine.train(simulation.messages(2))[2], bytes)


# Says that it is ready, reads the beginning of a message, and says something that is no answer.
LIAR = """
import sys, time
sys.stdout.buffer.write(bytes(25))
sys.stdout.flush()
sys.stdin.buffer.read(24)
sys.stdout.buffer.write(bytes.fromhex(sys.argv[1]))
sys.stdout.flush()
time.sleep(600)
"""


@needs_kernels
@pytest.mark.parametrize(
    "said",
    [
        b"\7" + bytes(24),  # no status
        ANSWER.pack(DONE, 1.0, 1, 2**32 + 1),  # an answer that is too long
        ANSWER.pack(DONE, 1.0, 1, 2) + b"more",
        ANSWER.pack(DONE, 1.0, 1, 2) + b"ok",  # without having read its message
    ],
    ids=["status", "length", "more", "early"],
)
def test_a_worker_that_says_what_is_no_answer_costs_one_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(Devices, "command", lambda self: [sys.executable, "-c", LIAR, said.hex()])
    simulation = Simulation(tmp_path, width=64)
    with ProcessEngine(simulation.fleet, 1) as engine:
        lying = one_worker(engine).process
        monkeypatch.undo()
        answers = engine.train(simulation.messages(0, 1))
        assert "its worker process died" in lost_reason(answers[0])
        assert isinstance(answers[1], bytes)
        assert lying.returncode == -signal.SIGKILL


# Reads its whole message, and answers it.
PUNCTUAL_LIAR = """
import struct, sys
sys.stdout.buffer.write(bytes(25))
sys.stdout.flush()
while header := sys.stdin.buffer.read(24):
    number, samples, length = struct.unpack("<QQQ", header)
    sys.stdin.buffer.read(samples + length)
    sys.stdout.buffer.write(bytes.fromhex(sys.argv[1]))
    sys.stdout.flush()
"""


@needs_kernels
@pytest.mark.parametrize(
    ("seconds", "peak", "wrong"),
    [
        (math.nan, 1, "seconds"),
        (math.inf, 1, "seconds"),
        (-1.0, 1, "seconds"),
        (1.0, -1, "peak_memory"),
        (1.0, 2**62, "peak_memory"),
        (1e300, -5, "seconds, peak_memory"),
    ],
)
def test_measurements_that_cannot_be_are_left_out_and_cost_no_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, peak: int, wrong: str
) -> None:
    said = ANSWER.pack(DONE, seconds, peak, 2) + b"ok"
    monkeypatch.setattr(Devices, "command", lambda self: [sys.executable, "-c", PUNCTUAL_LIAR, said.hex()])
    simulation = Simulation(tmp_path)
    with ProcessEngine(simulation.fleet, 1) as engine:
        assert engine.train(simulation.messages(0))[0] == b"ok"
        reason = f"its report of itself is left out: no such {wrong}"
        assert engine.reports == [Failed(device=0, reason=reason)]


# Memory.


@pytest.fixture(params=[pytest.param("group", marks=needs_groups), "itself"])
def limited_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who enforces a limit: the kernel kills a member of a group, or an allocation fails."""
    if request.param == "itself":
        monkeypatch.setattr(process_limit, "_make_group", lambda limit, made: None)
    kind: str = request.param
    return kind


@needs_kernels
def test_a_device_out_of_memory_costs_its_own_update(tmp_path: Path, limited_by: str) -> None:
    simulation = Simulation(tmp_path, method=HUNGRY, backend="native", device_memory="80MB")
    with ProcessEngine(simulation.fleet, 1) as engine:
        (before,) = workers()
        answers = engine.train(simulation.messages(0, 1, 2))
        assert "out of memory" in lost_reason(answers[1])
        assert [type(answers[device]) for device in (0, 2)] == [bytes, bytes]
        assert workers() == [before] if limited_by == "itself" else workers() != [before]
        assert isinstance(engine.train(simulation.messages(1, round_number=1))[1], bytes)
    if limited_by == "group":
        assert "killed at the limit of 80.0 MB" in lost_reason(answers[1])


@needs_kernels
def test_a_limit_is_of_all_that_is_resident_libraries_included(
    tmp_path: Path, limited_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that takes 10 MB more fits when the limit is 20 MB above what it takes, but not at 5 MB."""
    simulation = Simulation(tmp_path, method=HUNGRY, backend="native")
    with ProcessEngine(simulation.fleet, 1) as engine:
        engine.train(simulation.messages(0))
        usual = peak_memory(engine)
    monkeypatch.setenv("HUNGRY_MEGABYTES", "10")
    for room, fits in ((20_000_000, True), (5_000_000, False)):
        limited = simulation.experiment.model_copy(update={"device_memory": usual + room})
        with ProcessEngine(dataclasses.replace(simulation.fleet, experiment=limited), 1) as engine:
            (answer,) = engine.train(simulation.messages(1)).values()
        if fits:
            assert isinstance(answer, bytes)
            assert usual + 9_000_000 < peak_memory(engine) < usual + 11_500_000
        else:
            assert "out of memory" in lost_reason(answer)


@needs_kernels
def test_a_batch_that_does_not_fit_costs_the_update_of_the_device_that_has_it(
    tmp_path: Path, limited_by: str
) -> None:
    """Device 0 has four samples, and device 1 a batch of 512 images."""
    settings = {"width": 32, "batch_size": 512, "synthetic_size": 32, "synthetic_train": 600}
    simulation = Simulation(tmp_path, **settings, backend="native", device_memory="64MB")
    shares = [np.arange(4), np.arange(600)]
    with ProcessEngine(dataclasses.replace(simulation.fleet, shares=shares), 1) as engine:
        answers = engine.train(simulation.messages(0, 1))
        assert isinstance(answers[0], bytes)
        assert "out of memory" in lost_reason(answers[1])
        assert len(engine.reports) == 1
        assert peak_memory(engine) < 64_000_000


@needs_kernels
def test_a_run_continues_without_the_device_that_is_out_of_memory(tmp_path: Path, limited_by: str) -> None:
    experiment = Experiment(**{**TINY, "devices_per_round": 4, "rounds": 2, "method": HUNGRY})

    def start(fleet: Fleet) -> ProcessEngine:
        limited = fleet.experiment.model_copy(update={"device_memory": 80_000_000})
        return ProcessEngine(dataclasses.replace(fleet, experiment=limited), 2)

    native = experiment.model_copy(update={"backend": "native"})
    first, second = fedmef.run(native, tmp_path / "run", start=start).rounds
    assert [failed.device for failed in first.lost] == [1]
    assert "out of memory" in first.lost[0].reason
    assert second.lost == []
    assert all(report.peak_memory < 80_000_000 for report in second.device_reports)


@needs_kernels
@pytest.mark.parametrize("limit", ["8MB", "28MB"])
def test_a_limit_in_which_not_even_the_process_fits_is_said_at_the_start(
    tmp_path: Path, limited_by: str, limit: str
) -> None:
    """With 28 MB it starts in a group, which does not count libraries that are in memory before."""
    simulation = Simulation(tmp_path, backend="native", device_memory=limit)
    with pytest.raises(FedmefError, match=r"memory = (8|28).*give it more"):
        ProcessEngine(simulation.fleet, 1)
    assert workers() == []


@needs_kernels
@needs_groups
def test_groups_go_with_their_workers_and_those_of_killed_processes_later(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path, method=HUNGRY, backend="native", device_memory="80MB")
    with ProcessEngine(simulation.fleet, 1) as engine:
        group = one_worker(engine)._limit.group
        ended = subprocess.run(["/bin/sh", "-c", "echo $$"], capture_output=True, check=True)
        abandoned = group.folder.with_name(f"fedmef-{int(ended.stdout)}-1")
        abandoned.mkdir()
        engine.train(simulation.messages(1))
        assert not group.folder.exists()
        assert not abandoned.exists()
        group = one_worker(engine)._limit.group
        assert group.folder.exists()
    assert not group.folder.exists()


# Signals and the end.


@pytest.mark.parametrize("backend", [native, slow_torch])
def test_ctrl_c_does_not_reach_workers(tmp_path: Path, backend: Name) -> None:
    simulation = Simulation(tmp_path, backend=backend)
    with ProcessEngine(simulation.fleet, 1) as engine:
        (process,) = workers()
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(process, number)
        assert isinstance(engine.train(simulation.messages(0))[0], bytes)
        assert workers() == [process]


PARENT = """
import sys, time
from pathlib import Path
import numpy as np
from fedmef.federation.engines.light import Devices, LightWorker
from fedmef.runs.records import DeviceReport, Failed
from fedmef.wire.store import Store

folder = Path(sys.argv[1])
worker = LightWorker(Devices(folder, [np.arange(4)], Store(folder / "held")))
assert worker.receive() is not None
print(worker.process.pid, flush=True)
time.sleep(600)
"""


@needs_kernels
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((8, 1, 8, 8), dtype=np.uint8))
    np.save(tmp_path / "labels.npy", np.zeros(8, dtype=np.int64))
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    worker = Path("/proc", parent.stdout.readline().strip())
    assert b"fedmef.device" in (worker / "cmdline").read_bytes()
    parent.kill()
    parent.communicate()
    for _ in range(300):
        if not (worker / "exe").exists():
            break
        time.sleep(0.1)
    assert not (worker / "exe").exists()


# Workers that cannot start.


def test_an_error_while_a_worker_starts_is_told_and_leaves_the_scratch_folder_to_the_others(
    tmp_path: Path,
) -> None:
    ours, theirs = multiprocessing.Pipe()
    work(theirs, Experiment(), tmp_path / "no-data", Store(tmp_path / "held"), tmp_path)
    answer = ours.recv_bytes()
    assert answer[:1] == FAILED
    lost = Lost.from_text(answer[1:].decode())
    assert "no-data" in lost.reason
    assert "Traceback" in lost.traceback
    assert tmp_path.is_dir()


@pytest.mark.parametrize("backend", [native, "torch"])
def test_a_worker_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Name
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    experiment = Experiment(**TINY, backend=backend)
    dataset = open_dataset(experiment)
    object.__setattr__(dataset, "folder", tmp_path / "moved-away")
    with pytest.raises(FedmefError, match="moved-away") as failure:
        fedmef.run(experiment, tmp_path / "run", dataset=dataset)
    assert isinstance(failure.value.__cause__, WorkerError)
    assert "Traceback" in str(failure.value.__cause__)
    assert workers() == []
    assert list(tmp_path.iterdir()) == []


class Frail(ProcessEngine):
    """Its first replacements die while they start."""

    failures = 0

    def _start(self) -> Worker:
        worker = super()._start()
        if self._workers and self.failures:
            self.failures -= 1
            worker.kill()
        return worker


def run_with_failures(failures: int, out: Path, backend: Name) -> fedmef.Run:
    def start(fleet: Fleet) -> Frail:
        engine = Frail(fleet, 1)
        engine.failures = failures
        return engine

    settings = {**TINY, "backend": backend, "faults": "kill@0:0,kill@0:1"}
    return fedmef.run(Experiment(**settings), out, start=start)


@pytest.mark.parametrize("backend", [native, slow_torch])
def test_a_replacement_that_dies_while_it_starts_is_replaced_in_turn(tmp_path: Path, backend: Name) -> None:
    (record,) = run_with_failures(RESTARTS, tmp_path / "run", backend).rounds
    assert {failed.device for failed in record.lost} == {0, 1} & set(record.devices)


@pytest.mark.parametrize("backend", [native, slow_torch])
def test_replacements_are_not_tried_for_ever(tmp_path: Path, backend: Name) -> None:
    with pytest.raises(FedmefError, match="a worker process could not start"):
        run_with_failures(RESTARTS + 1, tmp_path / "run", backend)
    assert workers() == []


class FrailAtFirst(ProcessEngine):
    """Its first workers are killed while they start."""

    failures = 0

    def _start(self) -> Worker:
        worker = super()._start()
        if type(self).failures:
            type(self).failures -= 1
            worker.kill()
        return worker


@pytest.mark.parametrize("backend", [native, slow_torch])
@pytest.mark.parametrize("failures", [RESTARTS, RESTARTS + 1])
def test_a_worker_that_is_killed_at_the_start_of_a_run_is_tried_again_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Name, failures: int
) -> None:
    monkeypatch.setattr(FrailAtFirst, "failures", failures)
    experiment = Experiment(**{**TINY, "backend": backend})

    def run() -> fedmef.Run:
        return fedmef.run(experiment, tmp_path / "run", start=lambda fleet: FrailAtFirst(fleet, 1))

    if failures > RESTARTS:
        with pytest.raises(FedmefError, match="a worker process could not start"):
            run()
        assert not (tmp_path / "run").exists()
    else:
        assert run().rounds[0].lost == []
    assert workers() == []


@pytest.mark.parametrize("backend", [native, slow_torch])
def test_a_stopped_worker_without_a_deadline_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Name
) -> None:
    monkeypatch.setattr(processes, "SECONDS_STOPPED", 0.2)
    monkeypatch.setattr(processes, "SECONDS_BETWEEN_LOOKS", 0.1)
    simulation = Simulation(tmp_path, backend=backend)
    messages = simulation.messages(0)
    with ProcessEngine(simulation.fleet, 1) as engine:
        pid = one_worker(engine).pid
        os.kill(pid, signal.SIGSTOP)
        timer = threading.Timer(2.0, os.kill, (pid, signal.SIGCONT))
        timer.start()
        with pytest.warns(FedmefWarning, match=f"worker process {pid} is stopped.*kill -CONT {pid}"):
            answers = engine.train(messages)
        timer.join()
    assert isinstance(answers[0], bytes)
