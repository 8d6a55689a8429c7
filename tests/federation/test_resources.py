"""What a run holds: memory is flat, files and processes go, and a full disk costs nothing that was done."""

import contextlib
import gc
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedmef
from fedmef.errors import FedmefError
from fedmef.experiment.settings import Experiment
from fedmef.runs.records import Round
from tests.federation.small import AfterRounds, digest, workers

TINY: dict[str, Any] = {
    "dataset": "synthetic",
    "synthetic_size": 8,
    "synthetic_train": 60,
    "synthetic_test": 20,
    "width": 4,
    "devices": 4,
    "devices_per_round": 2,
    "local_epochs": 1,
    "learning_rate": 0.1,
    "adjust_every": 3,
}


def resident(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_of_server_and_workers_is_flat_over_300_rounds(tmp_path: Path) -> None:
    seen: dict[int, list[int]] = {}

    def watch(record: Round) -> None:
        if record.round in (20, 299):
            gc.collect()
            seen[record.round] = [resident(process) for process in (os.getpid(), *workers())]

    experiment = Experiment(**TINY, rounds=300, evaluate_every=10, engine="processes", workers=2)
    fedmef.run(experiment, tmp_path / "run", callbacks=[AfterRounds(watch)])
    assert len(seen[20]) == 3
    for early, late in zip(seen[20], seen[299], strict=True):
        assert late < 1.03 * early, seen


@pytest.mark.slow
def test_file_handles_processes_and_scratch_files_go_on_every_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()

    def handles() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    def fail(record: Round) -> None:
        raise FedmefError("on purpose")

    experiment = Experiment(**TINY, rounds=2, engine="processes", workers=2, faults="kill@1:0,kill@1:1")
    fedmef.run(experiment, tmp_path / "first")  # what Python itself opens once
    before = handles()
    with pytest.raises(FedmefError, match="on purpose"):
        fedmef.run(experiment, tmp_path / "second", callbacks=[AfterRounds(fail)])
    assert handles() == before
    assert workers() == []
    assert list((tmp_path / "scratch").glob("fedmef-*")) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_stops_the_run_which_resumes_when_there_is_room(tmp_path: Path, small_disk: Path) -> None:
    whole = fedmef.run(Experiment(**TINY, rounds=5, engine="inline"), tmp_path / "whole")
    filler = small_disk / "filler"

    def fill_the_disk(record: Round) -> None:
        if record.round == 2:
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(1000))

    with pytest.raises(
        FedmefError, match=r"cannot write into .*: No space left on device.*--resume"
    ) as failure:
        fedmef.run(
            Experiment(**TINY, rounds=5, engine="inline"),
            small_disk / "run",
            callbacks=[AfterRounds(fill_the_disk)],
        )
    assert failure.value.exit_code == 1
    filler.unlink()
    resumed = fedmef.resume(small_disk / "run")
    assert [record.round for record in resumed.rounds] == list(range(5))
    assert digest(resumed.path) == digest(whole.path)
