"""The HTTP surface, and the server both surfaces run on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from hobnob import __version__, statedir
from hobnob.api import Parts, socket
from hobnob.api.auth import Door
from hobnob.errors import BadInput

ADDRESS_FILE = "gateway.json"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def app(parts: Parts) -> Starlette:
    door = Door(parts.config)

    async def healthz(request: Request) -> JSONResponse:
        return JSONResponse({"ok": True, "version": __version__})

    async def connect(websocket: WebSocket) -> None:
        if not _own_origin(websocket):
            await websocket.close(1008, "foreign origin")
            return
        await socket.serve(websocket, parts, door)

    return Starlette(routes=[Route("/healthz", healthz), WebSocketRoute("/", connect)])


def _own_origin(connection: HTTPConnection) -> bool:
    """A browser names where its page came from; only our own pages may talk to us."""
    origin = connection.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == connection.headers.get("host")


def address(host: str, port: int) -> str:
    return f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"


@contextmanager
def known_as(home: Path, url: str) -> Iterator[None]:
    """Note in the state directory where we listen, for the commands of this user."""
    path = home / ADDRESS_FILE
    fd = statedir.open_private(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    with os.fdopen(fd, "wb") as file:
        file.write(orjson.dumps({"url": url, "pid": os.getpid()}))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def whereabouts(home: Path, pid: int) -> str | None:
    """Where the gateway with this pid listens, as far as it noted that."""
    try:
        noted = orjson.loads((home / ADDRESS_FILE).read_bytes())
        return str(noted["url"]) if noted["pid"] == pid else None
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


@asynccontextmanager
async def open_server(parts: Parts) -> AsyncIterator[str]:
    """Listen as configured. Yields the address."""
    gateway = parts.config.settings.gateway
    if gateway.bind not in _LOOPBACK and gateway.auth.token is None:
        raise BadInput(
            f"gateway.bind is {gateway.bind}, which others can reach, and no token is set.",
            fix="Set gateway.auth.token (or $HOBNOB_TOKEN), or bind to 127.0.0.1.",
        )
    config = uvicorn.Config(
        app(parts),
        host=gateway.bind,
        port=gateway.port,
        ws=socket.Protocol,
        ws_max_size=socket.FRAME_BYTES,
        ws_per_message_deflate=False,  # a fifth of a turn's cost, and memory for every connection
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    server = uvicorn.Server(config)
    # Not in a task group: that would cut the server off when the body fails, with its sockets open.
    running = asyncio.create_task(_serve(server, gateway.bind, gateway.port), name="server")
    try:
        while not server.started and not running.done():  # noqa: ASYNC110 - uvicorn has a flag, no event
            await asyncio.sleep(0.005)
        if not running.done():
            yield address(gateway.bind, server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        await running


async def _serve(server: uvicorn.Server, host: str, port: int) -> None:
    try:
        await server._serve()  # without uvicorn's signal handlers: the command line has its own
    except SystemExit:
        raise BadInput(
            f"{host}:{port} cannot be listened on; something else may be using the port.",
            fix="Set gateway.port to another port, or stop what is using this one.",
        ) from None
