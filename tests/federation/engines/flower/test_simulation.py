"""`--engine flower`: the same bits as inline, and nothing left behind. Few tests: Ray starts slowly."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedmef.runs.directory import Run

SETTINGS = {
    "devices": 10,
    "devices_per_round": 5,
    "rounds": 6,
    "adjust_every": 2,
    "adjust_until": 5,
    "local_epochs": 1,
    "width": 8,
    "workers": 2,
}


def command(engine: str, out: Path, **settings: object) -> list[str]:
    options = {**SETTINGS, "engine": engine, "out": out, **settings}
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return [sys.executable, "-m", "fedmef", "run", *flags]


@pytest.mark.slow
def test_flower_ends_in_the_same_bits_as_inline(tmp_path: Path) -> None:
    for engine in ("inline", "flower"):
        ended = subprocess.run(
            command(engine, tmp_path / engine), capture_output=True, text=True, check=True, timeout=300
        )
        said = [line for line in ended.stderr.splitlines() if "starting the devices (" not in line]
        assert said == []  # neither Flower nor Ray talks; we do, where they take long
    inline, flower = (tmp_path / engine for engine in ("inline", "flower"))
    assert (flower / "model.safetensors").read_bytes() == (inline / "model.safetensors").read_bytes()
    assert json.loads((flower / "summary.json").read_text())["adjustments"] == 2
    for record in Run.open(flower).rounds:
        assert [report.device for report in record.device_reports] == record.devices
        assert sum(report.bytes_up for report in record.device_reports) == record.bytes_up


@pytest.mark.slow
def test_ctrl_c_ends_the_simulation_and_its_processes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        command("flower", out, rounds=1000, workers=1),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FEDMEF_TEST": str(tmp_path)},
    )
    end = time.monotonic() + 240
    while not (out / "checkpoint.safetensors").exists() and time.monotonic() < end:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, "--resume" in said) == (130, True), said
    end = time.monotonic() + 60  # Ray's last processes end when they notice that they are alone
    while (left := _processes(f"FEDMEF_TEST={tmp_path}")) and time.monotonic() < end:
        time.sleep(0.5)
    assert left == []


def _processes(variable: str) -> list[str]:
    """Processes that inherited this variable."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable.encode() in path.read_bytes():
                found.append((path.parent / "cmdline").read_text())
        except OSError:
            continue  # it ended in between, or is not ours
    return found
