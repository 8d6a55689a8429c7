"""docs/deploy.md on this machine alone: certificates, a SuperLink, two SuperNodes, a run, its report.

    python scripts/deploy_demo.py [DIR]     (make deploy-demo)

Everything is a real process on the loopback, with TLS and node authentication. 127.0.0.1 is the server's own,
127.0.0.2 stands for its address in the devices' network; a stranger tries all that listens there, in vain.
Whatever was started is stopped, whatever happens; what was written stays in DIR.
"""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.stranger import Stranger, listening, outside

INSIDE, OUTSIDE = "127.0.0.1", "127.0.0.2"
EVERYWHERE = ("0.0.0.0", "::")
BIN = Path(sys.executable).parent
# As environment.sh of the app.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

# On devices: glibc has one heap for all threads, and gives large blocks back as soon as they are free.
SMALL = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}


CERTIFICATES = (
    *("--ssl-ca-certfile", "keys/ca.crt"),
    *("--ssl-certfile", "keys/server.pem", "--ssl-keyfile", "keys/server.key"),
)


class Deployment:
    """An app's SuperLink and SuperNodes on this machine. Leaving the block stops what is still running.

    Args:
        folder: where the app is written, and all else.
        devices: the commands of the SuperNodes' environment; by default this one's.
    """

    def __init__(self, folder: Path, devices: Path = BIN) -> None:
        self.folder = folder
        self.port = free_port()  # the SuperLink's, inside
        self.gate = f"{OUTSIDE}:{free_port(OUTSIDE)}"
        self.environment = _environment(folder, BIN)
        self._on_devices = _environment(folder, devices) | SMALL
        if devices != BIN:
            self._on_devices.pop("PYTHONPATH", None)  # it may lead to what devices must not have
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed(list(self._processes)):
            self.stop(name)

    def write_app(self) -> None:
        """The app, and where its SuperLink is."""
        self.call("fedmef", "flower", "new", ".")
        config = self.folder / ".flwr" / "config.toml"
        config.write_text(config.read_text().replace("127.0.0.1:8444", f"{INSIDE}:{self.port}"))

    def write_certificates(self) -> None:
        """A certificate authority of our own, and the SuperLink's certificate."""
        keys = self.folder / "keys"
        keys.mkdir()
        (keys / "server.ext").write_text(f"subjectAltName = DNS:localhost, IP:{INSIDE}, IP:{OUTSIDE}\n")
        new_key = ("-newkey", "rsa:3072", "-nodes")
        self.call(
            *("openssl", "req", "-x509", *new_key, "-days", "365", "-subj", "/CN=our own authority"),
            *("-keyout", "keys/ca.key", "-out", "keys/ca.crt"),
        )
        self.call(
            *("openssl", "req", *new_key, "-subj", "/CN=superlink"),
            *("-keyout", "keys/server.key", "-out", "keys/server.csr"),
        )
        self.call(
            *("openssl", "x509", "-req", "-in", "keys/server.csr", "-days", "365", "-CAcreateserial"),
            *("-CA", "keys/ca.crt", "-CAkey", "keys/ca.key"),
            *("-extfile", "keys/server.ext", "-out", "keys/server.pem"),
        )

    def start_superlink(self) -> None:
        """The SuperLink, for registered devices only, and the gate that they reach it through."""
        self.restart_superlink()
        host, port = self.gate.split(":")
        self.start(
            "gate",
            *("fedmef", "flower", "gate", "--host", host, "--port", port),
            *("--superlink", f"{INSIDE}:{self.port}", *CERTIFICATES),
        )
        wait_until(lambda: is_open(port, host), 60, f"the gate did not start: {self.log('gate')}")

    def restart_superlink(self) -> None:
        """Only the SuperLink, with what its database remembers."""
        (self.folder / "state").mkdir(mode=0o700, exist_ok=True)
        self.start(
            "superlink",
            *("flower-superlink", "--host", INSIDE, "--port", str(self.port), "--enable-supernode-auth"),
            *("--database", "state/superlink.db", *CERTIFICATES),
        )
        wait_until(lambda: is_open(self.port), 120, f"the SuperLink did not start: {self.log('superlink')}")

    def write_key(self, name: str) -> None:
        """A SuperNode's own pair of keys."""
        self.call("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", name, "-f", f"keys/{name}")

    def register(self, name: str) -> None:
        """Let the SuperLink know a SuperNode's public key."""
        self.call("flwr", "supernode", "register", f"keys/{name}.pub", "fleet", "--name", name)

    def start_supernode(
        self, name: str, device: int, *more: str, data: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """A SuperNode: one device, with its own data or what the app gives it."""
        config = f"partition-id={device}" + (f' data="{data}"' if data else "")
        return self.start(
            name,
            *("flower-supernode", "--superlink", self.gate, "--port", str(free_port())),
            *("--root-certificates", "keys/ca.crt", "--auth-supernode-private-key", f"keys/{name}"),
            *("--node-config", config, *more),
            environment=self._on_devices,
        )

    def start_run(self, settings: Mapping[str, object]) -> subprocess.Popen[bytes]:
        """`flwr run`, which shows what the server says until the run ends."""
        config = " ".join(f"{name}={value}" for name, value in settings.items())
        return self.start("run", "flwr", "run", ".", "fleet", "--stream", "--run-config", config)

    def keep_running(self, settings: Mapping[str, object]) -> subprocess.Popen[bytes]:
        """The same again and again until the run is finished, as the unit in docs/deploy.md does."""
        config = " ".join(f"{name}={value}" for name, value in settings.items())
        run = f"flwr run . fleet --stream --run-config 'resume=true {config}'"
        return self.start(
            "run", "sh", "-c", f"until {run}; test -e runs/flower/summary.json; do sleep 5; done"
        )

    def let_a_stranger_try(self) -> dict[str, dict[str, str | None]]:
        """What a stranger was refused with, at each address that the fleet listens on outside."""
        addresses = [
            f"{OUTSIDE if host in EVERYWHERE else host}:{port}"
            for host, port in sorted(outside(listening(f"FLWR_HOME={self.folder / '.flwr'}")))
        ]
        stranger = Stranger(self.folder / "stranger", self.folder / "keys" / "ca.crt", self.environment)
        return {address: stranger.attempts(address) for address in addresses}

    def start(
        self, name: str, *command: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process of its own group, whose output goes to a log."""
        print("$", *command, "&", flush=True)
        with self._log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment or self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._processes[name]

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop a process and what it started; returns its exit code."""
        process = self._processes.pop(name)
        for number in (how, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        return process.wait()

    def is_running(self, name: str) -> bool:
        """Whether a process that was started has not ended."""
        return self._processes[name].poll() is None

    def wait_for_exit(self, name: str, seconds: float) -> int:
        """Its exit code."""
        return self._processes[name].wait(seconds)

    def log(self, name: str) -> str:
        """What a process has said so far, without colours."""
        return re.sub(r"\x1b\[\d*m", "", self._log(name).read_text(errors="replace"))

    def call(self, *command: str) -> None:
        """Run a command to its end; it must succeed."""
        print("$", *command, flush=True)
        ended = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise SystemExit(f"{command[0]} failed:\n{ended.stdout}{ended.stderr}")

    def _log(self, name: str) -> Path:
        folder = self.folder / "logs"
        folder.mkdir(exist_ok=True)
        return folder / f"{name}.log"


def _environment(folder: Path, commands: Path) -> dict[str, str]:
    """Flower finds its own commands on the path, too."""
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **QUIET, "FLWR_HOME": str(folder / ".flwr"), "PATH": path}


def free_port(host: str = INSIDE) -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def is_open(port: int | str, host: str = INSIDE) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def wait_until(happened: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Wait for something; `otherwise` is the error when it does not happen in time."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise SystemExit(otherwise)
        time.sleep(0.5)


def demonstrate(folder: Path) -> None:
    """Two devices train three rounds, one with an adjustment; a stranger stays outside."""
    with Deployment(folder) as fleet:
        fleet.write_app()
        fleet.write_certificates()
        fleet.start_superlink()
        for device in (0, 1):
            fleet.write_key(f"device-{device}")
            fleet.register(f"device-{device}")
            fleet.start_supernode(f"device-{device}", device)
        # `adjust-every=1` adjusts the masks after the second round.
        settings = {"devices": 2, "devices-per-round": 2, "rounds": 3, "adjust-every": 1, "local-epochs": 1}
        run = fleet.start_run(settings)
        for address, refusals in fleet.let_a_stranger_try().items():
            print(f"a stranger at {address}, with nothing but ca.crt:")
            for attempt, refusal in refusals.items():
                if not (refusal or "").startswith("4"):  # an answer of HTTP, and no accident
                    raise SystemExit(f"the stranger was not refused to {attempt}: {refusal}")
                print(f"  could not {attempt}: {refusal}", flush=True)
        if run.wait(600) or not (folder / "runs" / "flower" / "summary.json").exists():
            raise SystemExit(f"the run failed:\n{fleet.log('run')}")
        print(*re.findall(r"(?:round|test accuracy) .*", fleet.log("run")), sep="\n", flush=True)
        fleet.call("fedmef", "report", "runs/flower")
    print(f"the report is {folder / 'runs' / 'report' / 'report.html'}")


def main() -> None:
    """The demo, in a new directory."""
    parser = argparse.ArgumentParser(description="A whole federation with TLS on this machine alone.")
    parser.add_argument("directory", type=Path, nargs="?", default=Path("runs/deploy_demo"))
    folder: Path = parser.parse_args().directory.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} is there already: remove it, or name another directory")
    folder.mkdir(parents=True, exist_ok=True)
    demonstrate(folder)


if __name__ == "__main__":
    main()
