"""A SuperLink and SuperNodes as real processes on the loopback, with TLS and node authentication."""

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmef.runs.directory import Run
from scripts.deploy_demo import INSIDE, Deployment, demonstrate, wait_until
from scripts.stranger import Stranger, listening, outside

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs openssl and ssh-keygen"
    ),
]


def records(folder: Path) -> list[dict[str, Any]]:
    run = folder / "runs" / "flower"
    begun = (run / "config.toml").exists()
    return [record.model_dump() for record in Run.open(run).rounds] if begun else []


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


def test_a_stranger_reaches_nothing_but_the_gate_and_the_gate_admits_no_stranger(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    with Deployment(folder) as fleet:
        fleet.write_app()
        fleet.write_certificates()
        fleet.start_superlink()
        fleet.write_key("device-0")
        fleet.register("device-0")
        fleet.start_supernode("device-0", 0)
        wait_until(lambda: "Activated node_id" in fleet.log("superlink"), 60, "the device does not connect")
        addresses = listening(f"FLWR_HOME={folder / '.flwr'}")
        assert len(addresses) == 3  # SuperLink, gate, SuperNode
        assert [f"{host}:{port}" for host, port in outside(addresses)] == [fleet.gate]
        node = re.search(r"Activated node_id=(\d+)", fleet.log("superlink"))
        assert node
        stranger = Stranger(
            tmp_path / "stranger", folder / "keys" / "ca.crt", fleet.environment, int(node[1])
        )
        tried = stranger.attempts(fleet.gate)
        assert {attempt: (refusal or "")[:3] for attempt, refusal in tried.items()} == {
            "list the runs": "404",
            "start the server's apps itself": "404",
            "register a key": "404",
            "run an app": "404",
            "register as a SuperNode": "404",
            "connect as a SuperNode": "412",
            "pull another's messages": "401",
        }
        # The attempts are good ones: on the SuperLink itself they succeed, and run the stranger's code.
        tried = stranger.attempts(f"{INSIDE}:{fleet.port}")
        assert [attempt for attempt, refusal in tried.items() if refusal is None] == list(tried)[:4]
        wait_until(stranger.mark.exists, 60, "its code was not executed")


def test_a_run_survives_its_server(tmp_path: Path) -> None:
    """ServerApp and SuperLink are killed, one after the other; nobody registers anything again."""
    folder = tmp_path / "fleet"
    folder.mkdir()
    with Deployment(folder) as fleet:
        fleet.write_app()
        fleet.write_certificates()
        fleet.start_superlink()
        for device in range(2):
            fleet.write_key(f"device-{device}")
            fleet.register(f"device-{device}")
            fleet.start_supernode(f"device-{device}", device)
        run = fleet.keep_running({"devices": 2, "devices-per-round": 2, "rounds": 3, "local-epochs": 1})
        wait_until(lambda: len(records(folder)) >= 1, 120, "there is no round")
        (app,) = processes("flwr-serverapp", folder)
        os.kill(app, signal.SIGKILL)
        # The SuperLink gives it up when its heartbeat is missing for a minute; then there is a new one.
        wait_until(lambda: len(records(folder)) >= 2, 240, "no new app")
        fleet.stop("superlink", signal.SIGKILL)
        fleet.restart_superlink()
        assert run.wait(200) == 0, fleet.log("run")
        assert all(fleet.is_running(f"device-{device}") for device in range(2))
    assert [record["round"] for record in records(folder)] == [0, 1, 2]
    assert (folder / "runs" / "flower" / "model.safetensors").exists()


def processes(name: str, folder: Path) -> Iterator[int]:
    """Processes of a fleet, by their command."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = process.joinpath("cmdline").read_bytes().split(b"\0")
            if any(Path(word.decode()).name == name for word in words[:2]) and (
                f"FLWR_HOME={folder / '.flwr'}".encode() in process.joinpath("environ").read_bytes()
            ):
                yield int(process.name)
        except OSError:
            continue  # it has just ended
