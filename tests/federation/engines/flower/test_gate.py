"""The gate, with a SuperLink that only says what reached it. On a real one: test_deployment.py."""

import datetime
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, Self

import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedmef.errors import UserError
from fedmef.federation.engines.flower import gate
from fedmef.federation.engines.flower.gate import PASSES, gate_app


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for the loopback that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "superlink")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "server.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "server.pem", folder / "server.key"


async def echo(request: Request) -> Response:
    """What reached the SuperLink."""
    body = await request.body()
    return JSONResponse(
        {"path": request.url.path, "bytes": len(body), "headers": dict(request.headers)},
        headers={"flwr-answer": "yes", "x-other": "no"},
    )


class Served(uvicorn.Server):
    """An application with TLS, in a thread of this process."""

    def __init__(self, app: Starlette, folder: Path) -> None:
        self.certificate, key = write_certificate(folder)
        super().__init__(
            uvicorn.Config(
                app,
                port=0,
                ws="none",
                ssl_certfile=self.certificate,
                ssl_keyfile=str(key),
                log_level="critical",
            )
        )
        self.thread = threading.Thread(target=self.run)

    def __enter__(self) -> Self:
        self.thread.start()
        while self.thread.is_alive() and not self.started:
            self.thread.join(0.02)
        self.address = f"127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self.should_exit = True
        self.thread.join()

    def ask(
        self, path: str, content: bytes | Iterator[bytes] = b"", method: str = "POST", **headers: str
    ) -> tuple[int, dict[str, Any], Mapping[str, str]]:
        """Status, body and headers of the answer to a request whose path nobody makes tidy."""
        connection = HTTPSConnection(
            self.address, context=ssl.create_default_context(cafile=self.certificate), timeout=20
        )
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, content, names, encode_chunked=not isinstance(content, bytes))
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, json.loads(body) if body.startswith(b"{") else {}, dict(answer.headers)


@pytest.fixture(scope="module")
def superlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    app = Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])])
    with Served(app, tmp_path_factory.mktemp("superlink")) as server:
        yield server


@pytest.fixture
def outside(superlink: Served, tmp_path: Path) -> Iterator[Served]:
    """What a stranger reaches."""
    with Served(gate_app(superlink.address, superlink.certificate), tmp_path) as server:
        yield server


def test_what_a_supernode_asks_reaches_the_superlink(outside: Served) -> None:
    for name in PASSES:
        status, said, headers = outside.ask(f"/v1/fleet/{name}", b"12345", flwr_signature="mine")
        assert (status, said["path"], said["bytes"]) == (200, f"/v1/fleet/{name}", 5)
        assert said["headers"]["flwr-signature"] == "mine"
        assert headers["flwr-answer"] == "yes"
        assert "x-other" not in headers


def test_the_gate_passes_all_that_flower_offers_a_supernode_with_a_key() -> None:
    from flwr.superlink.routers.fleet.router import router

    offered = {getattr(route, "path", "") for route in router.routes}
    assert offered - {f"/v1/fleet/{name}" for name in PASSES} == {
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
    }


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/docs",
        "/health",
        "/openapi.json",
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/control/list-runs",
        "/v1/runtime/acquire-task",
        "/v1/runtime/pull-messages",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/pull-messages/",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/pull-messages/..%2f..%2fcontrol%2fstart-run",
        "//v1/control/start-run",
        "/V1/control/start-run",
    ],
)
def test_nothing_else_does(path: str, superlink: Served, outside: Served) -> None:
    for method in ("GET", "POST", "PUT", "OPTIONS"):
        assert outside.ask(path, method=method)[0] == 404
    assert superlink.ask(path)[0] == 200  # the same request within


def test_only_posts_pass(outside: Served) -> None:
    assert outside.ask("/v1/fleet/pull-messages", method="GET")[0] == 405


def test_a_query_and_foreign_headers_stay_outside(outside: Served) -> None:
    _, said, _ = outside.ask(
        "/v1/fleet/get-run?path=/v1/control/start-run",
        x_forwarded_for="10.0.0.1",
        host="inside",
        authorization="x",
        cookie="a=b",
    )
    assert said["path"] == "/v1/fleet/get-run"
    assert said["headers"]["host"].startswith("127.0.0.1:")
    assert not said["headers"].keys() & {"x-forwarded-for", "authorization", "cookie"}


def test_a_request_that_is_too_large_is_ended(outside: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "LARGEST_REQUEST", 1000)

    def pieces(count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield bytes(100)

    push = "/v1/fleet/push-object"
    assert outside.ask(push, bytes(1000))[1]["bytes"] == 1000
    assert outside.ask(push, pieces(10), transfer_encoding="chunked")[1]["bytes"] == 1000
    assert outside.ask(push, bytes(1001))[0] == 413
    assert outside.ask(push, pieces(11), transfer_encoding="chunked")[0] == 413


def test_a_request_that_does_not_come_is_ended(outside: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "PATIENCE", 0.1)
    assert outside.ask("/v1/fleet/push-object", content_length="10")[0] == 408


def test_while_the_superlink_restarts_supernodes_are_told_to_come_again(
    superlink: Served, tmp_path: Path
) -> None:
    with Served(gate_app("127.0.0.1:1", superlink.certificate), tmp_path) as outside:
        assert outside.ask("/v1/fleet/pull-messages")[0] == 503


def test_a_superlink_of_another_authority_is_not_believed(superlink: Served, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other, _ = write_certificate(tmp_path / "other")
    with Served(gate_app(superlink.address, other), tmp_path) as outside:
        assert outside.ask("/v1/fleet/get-run")[0] == 503


@pytest.mark.parametrize("address", ["0.0.0.0:8444", "192.168.1.10:8444", "superlink:8444", "[::]:8444", ""])
def test_a_superlink_that_others_may_reach_is_refused(address: str, superlink: Served) -> None:
    with pytest.raises(UserError, match="start the SuperLink with --host"):
        gate_app(address, superlink.certificate)


def test_headers_of_any_length_are_not_read(
    superlink: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {}
    monkeypatch.setattr(uvicorn, "run", lambda app, **given: options.update(given))
    app = gate_app(superlink.address, superlink.certificate)
    server = Served(app, tmp_path)
    gate.serve("127.0.0.1", 0, app, server.certificate, tmp_path / "server.key")
    server.config = uvicorn.Config(app, **options)  # as the command has it
    with server:
        status, _, _ = server.ask("/v1/fleet/pull-messages", flwr_long="x" * 2**20)
    assert status == 400


def test_headers_that_are_unclear_are_refused(superlink: Served, tmp_path: Path) -> None:
    with Served(gate_app(superlink.address, superlink.certificate), tmp_path) as outside:
        assert outside.ask("/v1/fleet/get-run", flwr_name="caf\xe9")[0] == 400
        assert outside.ask("/v1/fleet/get-run", transfer_encoding="chunked", content_length="3")[0] == 400
