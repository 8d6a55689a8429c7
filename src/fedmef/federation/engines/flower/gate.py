"""The gate: what a fleet's devices reach of its server, and all that a stranger can reach.

Flower's SuperLink takes everything at one port: what SuperNodes ask, which only registered keys may; and what
`flwr` orders and its own processes ask, which anybody may, and which executes code as the SuperLink's user.
So the SuperLink listens at the loopback only. The gate listens outside, and hands it what a SuperNode with a
key asks; there is no way to anything else. Whether a key is registered is then for the SuperLink to say.
"""

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedmef.errors import UserError

# What a SuperNode with a key asks. One that has none would register itself, which is not handed on.
PASSES = (
    *("activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages"),
    *("get-run", "get-fab", "push-object", "pull-object", "confirm-message-received"),
)
LARGEST_REQUEST = 16 * 2**20  # Flower cuts what it sends into pieces of 5 MB
PATIENCE = 30.0  # seconds for the next piece of a request or an answer, as Flower's own
MOST_AT_ONCE = 512  # connections; further ones are told to come again

HEADERS = ("content-type", "content-length", "accept")


class TooLargeError(Exception):
    """A request that no SuperNode makes."""


def gate_app(superlink: str, authority: Path) -> Starlette:
    """The gate as an ASGI application.

    Args:
        superlink: address and port of the SuperLink, at the loopback.
        authority: certificate of the authority that signed the SuperLink's.
    """
    check_loopback(superlink)
    client = httpx.AsyncClient(
        base_url=f"https://{superlink}",
        verify=ssl.create_default_context(cafile=authority),
        timeout=PATIENCE,
        limits=httpx.Limits(max_connections=MOST_AT_ONCE),
        trust_env=False,
    )

    async def hand_over(path: str, request: Request) -> Response:
        if not _is_clear(request.headers):
            return PlainTextResponse("bad request\n", 400)
        try:
            asked = client.build_request(
                "POST",
                path,  # our own word for it: what a stranger wrote is handed to nobody
                headers={**_handed_on(request.headers), "accept-encoding": "identity"},
                content=_bounded(request),
            )
            answer = await client.send(asked, stream=True)
        except TooLargeError:
            return PlainTextResponse("too large\n", 413)
        except TimeoutError:
            return PlainTextResponse("too slow\n", 408)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except httpx.TransportError:  # it is being restarted; SuperNodes try again when they are told so
            return PlainTextResponse("the SuperLink does not answer\n", 503)
        return StreamingResponse(
            answer.aiter_raw(),
            answer.status_code,
            _handed_on(answer.headers),
            background=BackgroundTask(answer.aclose),
        )

    paths = [f"/v1/fleet/{name}" for name in PASSES]
    app = Starlette(routes=[Route(path, partial(hand_over, path), methods=["POST"]) for path in paths])
    app.router.redirect_slashes = False
    return app


def serve(host: str, port: int, app: Starlette, certificate: Path, key: Path) -> None:
    """Until a signal ends it."""
    uvicorn.run(
        app,
        host=host,
        port=port,
        http="h11",  # the other one takes headers of any length
        ws="none",
        ssl_certfile=certificate,
        ssl_keyfile=str(key),
        limit_concurrency=MOST_AT_ONCE,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
    )


def check_loopback(superlink: str) -> None:
    """Raise `UserError` when a SuperLink listens where others than this machine may reach it."""
    host = superlink.rpartition(":")[0].strip("[]")
    try:
        inside = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = False
    if not inside:
        raise UserError(
            f"superlink = '{superlink}': start the SuperLink with --host 127.0.0.1, and give that address "
            "and its port; whoever reaches it may run code on it"
        )


def _is_clear(headers: Mapping[str, str]) -> bool:
    """Whether headers say one thing only, in characters that a header may have."""
    lengths = [name for name in ("content-length", "transfer-encoding") if name in headers]
    return len(lengths) < 2 and all(value.isascii() and value.isprintable() for value in headers.values())


def _handed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Flower's own headers, and what says how to read the body."""
    return {name: value for name, value in headers.items() if name in HEADERS or name.startswith("flwr-")}


async def _bounded(request: Request) -> AsyncIterator[bytes]:
    """A request's body, piece by piece, as long as it is small and keeps coming."""
    size, pieces = 0, request.stream()
    while True:
        async with asyncio.timeout(PATIENCE):
            piece = await anext(pieces, None)
        if piece is None:
            return
        size += len(piece)
        if size > LARGEST_REQUEST:
            raise TooLargeError
        yield piece
