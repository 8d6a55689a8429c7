"""A SuperLink and SuperNodes as real processes on the loopback, with TLS and node authentication."""

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fedmef.runs.directory import Run
from scripts.deploy_demo import Deployment, demonstrate, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs openssl and ssh-keygen"
    ),
]


def records(folder: Path) -> list[dict[str, Any]]:
    run = folder / "runs" / "flower"
    return [record.model_dump() for record in Run.open(run).rounds] if run.exists() else []


def test_two_registered_devices_train_and_a_stranger_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    demonstrate(folder)
    rounds = records(folder)
    assert [record["adjusted"] for record in rounds] == [False, True, False]
    for record in rounds:
        assert [report["device"] for report in record["device_reports"]] == [0, 1]
        assert sum(report["bytes_up"] for report in record["device_reports"]) == record["bytes_up"]
    assert (folder / "runs" / "report" / "report.html").exists()


def test_a_supernode_that_is_killed_costs_its_update_and_may_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    with Deployment(folder) as fleet:
        fleet.write_app()
        fleet.write_certificates()
        fleet.start_superlink()
        for device in range(3):
            fleet.write_key(f"device-{device}")
            fleet.register(f"device-{device}")
            fleet.start_supernode(f"device-{device}", device)
        # Enough rounds to come back in: the first waits for the dead one about as long as the SuperLink.
        settings = {"devices": 3, "devices-per-round": 3, "rounds": 8, "local-epochs": 1, "deadline": 90.0}
        run = fleet.start_run(settings)
        wait_until(lambda: "train.round" in fleet.log("device-2"), 400, "there is no round")
        fleet.stop("device-2", signal.SIGKILL)
        fleet.start_supernode("device-2", 2)
        while run.poll() is None:
            time.sleep(1)
            if not fleet.is_running("device-2"):  # the SuperLink believes in the dead one for a minute
                fleet.start_supernode("device-2", 2)
        assert run.returncode == 0, fleet.log("run")
    answered = [len(record["device_reports"]) for record in records(folder)]
    assert 3 in answered[answered.index(2) :], fleet.log("run")
    assert (folder / "runs" / "flower" / "model.safetensors").exists()
