"""What a stranger tries on a fleet: nobody registered it, it has `ca.crt`, and reaches what listens outside.

The attempts are those of Flower's own commands and clients. `deploy_demo.py` and the tests make them at every
address that a fleet listens on, the loopback's own excepted.
"""

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

LISTENS = "0A"  # a state in /proc/net/tcp

PROJECT = """
[project]
name = "stranger"
version = "1.0.0"
license = "Apache-2.0"
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.flwr.app]
publisher = "stranger"
[tool.flwr.app.components]
serverapp = "stranger.server_app:app"
clientapp = "stranger.server_app:devices"
"""
APP = """
from pathlib import Path
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
app = ServerApp()
devices = ClientApp()
@app.main()
def main(grid, context):
    Path({mark!r}).touch()
"""


class Stranger:
    """Somebody with a folder, a certificate and an address.

    Args:
        folder: a new folder of its own.
        authority: `ca.crt` of the fleet.
        environment: where Flower's commands are found.
        node: the number of a node of the fleet, which it should not even know.
    """

    def __init__(self, folder: Path, authority: Path, environment: Mapping[str, str], node: int = 1) -> None:
        self.folder = folder
        self.mark = folder / "code of a stranger was executed"
        self._authority = authority.read_bytes()
        self._environment = {**environment, "FLWR_HOME": str(folder / ".flwr")}
        self._node = node
        self._keys = generate_key_pairs()
        package = folder / "app" / "stranger"
        package.mkdir(parents=True)
        (folder / "ca.crt").write_bytes(self._authority)
        (folder / "app" / "pyproject.toml").write_text(PROJECT)
        (package / "__init__.py").touch()
        (package / "server_app.py").write_text(APP.format(mark=str(self.mark)))
        self._call("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", "key")

    def attempts(self, address: str) -> dict[str, str | None]:
        """What it tries at an address, and with what it was refused; None when it was not."""
        (self.folder / ".flwr").mkdir(exist_ok=True)
        (self.folder / ".flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "there"\n[superlink.there]\naddress = "{address}"\n'
            f'root-certificates = "{self.folder / "ca.crt"}"\n'
        )
        return {
            "list the runs": self._call("flwr", "list", "there"),
            "start the server's apps itself": self._acquire_task(address),
            "register a key": self._call("flwr", "supernode", "register", "key.pub", "there"),
            "run an app": self._call("flwr", "run", "app", "there"),
            "register as a SuperNode": self._as_supernode(address, "RegisterNode"),
            "connect as a SuperNode": self._as_supernode(address, "ActivateNode"),
            "pull another's messages": self._as_supernode(address, "PullMessages"),
        }

    def _call(self, *command: str) -> str | None:
        ended = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if ended.returncode == 0:
            return None
        said = " ".join(re.sub(r"\x1b\[[\d;]*m|[^\x20-\x7e]", " ", ended.stdout + ended.stderr).split())
        status = re.search(r"'(\d{3} [A-Z][\w ]+)'", said)
        return status[1] if status else said or "no reason"

    def _acquire_task(self, address: str) -> str | None:
        version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
        with RuntimeHttpClient.from_server_address(address, False, self._authority, [version]) as client:
            return _refusal(lambda: client.AcquireTask(AcquireTaskRequest()))

    def _as_supernode(self, address: str, what: str) -> str | None:
        key = public_key_to_bytes(self._keys[1])
        requests = {
            "RegisterNode": RegisterNodeFleetRequest(public_key=key),
            "ActivateNode": ActivateNodeRequest(public_key=key, heartbeat_interval=30),
            "PullMessages": PullMessagesRequest(node=Node(node_id=self._node)),
        }
        signed: list[ProtobufClientInterceptor] = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(*self._keys),
        ]
        with FleetHttpClient.from_server_address(address, False, self._authority, signed) as client:
            return _refusal(lambda: getattr(client, what)(requests[what]))


def _refusal(call: Callable[[], object]) -> str | None:
    try:
        call()
    except httpx.HTTPStatusError as error:
        return f"{error.response.status_code} {error.response.text[:200].strip()}"
    return None


def listening(variable: str) -> set[tuple[str, int]]:
    """Addresses and ports at which processes listen that inherited this variable ("NAME=value")."""
    sockets = _sockets()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() not in process.joinpath("environ").read_bytes().split(b"\0"):
                continue
            links = [str(file.readlink()) for file in process.joinpath("fd").iterdir()]
        except OSError:
            continue  # it ended in between, or is not ours
        found |= {sockets[link] for link in links if link in sockets}
    return found


def outside(addresses: set[tuple[str, int]]) -> set[tuple[str, int]]:
    """Those that are not this machine's own loopback. In a demo, 127.0.0.2 stands for its network."""
    return {(host, port) for host, port in addresses if host not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")}


def _sockets() -> dict[str, tuple[str, int]]:
    """What listens on this machine, with TCP."""
    found = {}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS:
                host, port = words[1].split(":")
                # Words of 32 bits in the machine's own order.
                packed = b"".join(
                    int(host[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(host), 8)
                )
                found[f"socket:[{words[9]}]"] = (socket.inet_ntop(family, packed), int(port, 16))
    return found
