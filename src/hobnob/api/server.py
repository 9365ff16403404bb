"""The HTTP and WebSocket server."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

import orjson
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from hobnob import statedir
from hobnob.api import Services, event_frames, routing, websocket
from hobnob.api import routes as routes  # also for the routes it registers
from hobnob.api.auth import LOCAL_NAMES, origin_allowed, owner_token
from hobnob.api.mcp import endpoint as mcp_endpoint
from hobnob.api.uvicorn_protocols import (
    FIRST_FRAME_BYTES,
    HttpProtocol,
    WebSocketProtocol,
    check_frame_limits,
)
from hobnob.config.gateway import GatewaySettings
from hobnob.errors import BadInput, MethodNotAllowed, NotFound
from hobnob.fixes import config_set
from hobnob.types import now_ms

_log = logging.getLogger(__name__)
ADDRESS_FILE = "gateway.json"
_HEALTH_MS = 60_000
_PRESENCE_S = 0.5
_CLOSE_S = 1
_LISTENERS = 8
_OTHER_FILES = 256  # of the store, tools, and the owner's connections
PING_S = 20.0  # interval and timeout of WebSocket pings


class App:
    """The ASGI application. `routing.handle` never raises, so nothing is caught here."""

    def __init__(self, services: Services) -> None:
        owner_token(services.config)  # generate it now, so that clients can read it
        self._services = services
        self.mcp = mcp_endpoint.McpEndpoint(services)
        self._encoder = event_frames.EventEncoder()
        self._routes = [
            (compile_path(route.path)[0], route)
            for route in (*routing.ROUTES, *routes.hooks.routes(services), *routes.channels.routes())
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(asyncio.CancelledError):  # only `Server.shutdown` cancels: the connection is gone
            if scope["type"] == "websocket":
                await self._connect(WebSocket(scope, receive, send))
            elif scope["path"] == mcp_endpoint.PATH:
                await self.mcp(scope, receive, send)
            else:
                response = await self._answer(Request(scope, receive))
                await response(scope, receive, send)

    async def _connect(self, socket: WebSocket) -> None:
        if socket.scope["path"] != "/":
            await socket.close(1008, "not found")
        elif not origin_allowed(self._services.config.settings, socket.headers):
            await socket.close(1008, "foreign origin")
        else:
            await websocket.serve(socket, self._services, self._encoder)

    async def _answer(self, request: Request) -> Response:
        path, verb = request.scope["path"], "GET" if request.method == "HEAD" else request.method
        allowed: list[str] = []
        for pattern, route in self._routes:
            if (match := pattern.match(path)) is None:
                continue
            if route.verb == verb:
                request.scope["path_params"] = match.groupdict()
                return await routing.handle(route, self._services, request)
            allowed += ["GET", "HEAD"] if route.verb == "GET" else [route.verb]
        if allowed:
            error = MethodNotAllowed(f"The method {request.method} is not allowed at {path}.")
            return await routing.refuse(request, error, {"Allow": ", ".join(allowed)})
        return await routing.refuse(request, NotFound(f"There is nothing at {path}."))


def address(host: str, port: int) -> str:
    return f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"


def page_url(address: str) -> str:
    """The address for programs on this machine that speak HTTP."""
    host = address.removeprefix("ws://").replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")  # noqa: S104
    return f"http://{host}"


def url_for_others(address: str) -> str:
    """The address as other machines may know it: one that listens everywhere is named by its host."""
    host = socket.gethostname()
    return address.replace("//0.0.0.0:", f"//{host}:").replace("//[::]:", f"//{host}:")


@contextmanager
def address_file(home: Path, url: str) -> Iterator[None]:
    """Write the address to the state directory, where commands of this user find it."""
    path = home / ADDRESS_FILE
    fd = statedir.open_private(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    with os.fdopen(fd, "wb") as file:
        file.write(orjson.dumps({"url": url, "pid": os.getpid()}))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def read_address_file(home: Path, pid: int | None) -> str | None:
    """The address of the gateway with this pid, if it has written it; None: of any that is alive."""
    try:
        found = orjson.loads((home / ADDRESS_FILE).read_bytes())
        if pid is None:
            os.kill(int(found["pid"]), 0)  # raises OSError when it is gone
        return str(found["url"]) if pid in (None, found["pid"]) else None
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None


@asynccontextmanager
async def open_server(services: Services) -> AsyncIterator[str]:
    """Listen as configured. Yields the address."""
    gateway = services.config.settings.gateway
    require_secret(gateway)
    app = App(services)
    config = uvicorn.Config(
        app,
        host=gateway.bind,
        port=gateway.port,
        http=cast(type[HttpProtocol], partial(HttpProtocol, budgets=services.budgets)),
        ws=WebSocketProtocol,
        ws_max_size=FIRST_FRAME_BYTES,  # raised after authentication
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        ws_per_message_deflate=False,  # costs a fifth of a turn, and memory per connection
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,  # `auth.peer_of` reads them, from configured proxies only
        timeout_graceful_shutdown=_CLOSE_S + 1,
        server_header=False,
    )
    check_frame_limits(config, gateway.limits.request_bytes)
    _warn_of_few_files(services)
    sockets = listen(gateway.bind, gateway.port)
    server = Server(config)
    # Not in a task group: that would cancel the server when the body fails, with its sockets open.
    # `_serve` is `serve` without uvicorn's signal handlers: the command installs its own.
    running = asyncio.create_task(server._serve(sockets), name="server")
    ticking = asyncio.create_task(_tick(services), name="tick")
    mcp = asyncio.create_task(app.mcp.run(), name="mcp")
    try:
        while not server.started and not running.done():  # noqa: ASYNC110 - uvicorn has a flag, no event
            await asyncio.sleep(0.005)
        if not running.done():
            url = address(gateway.bind, sockets[0].getsockname()[1])
            services.mcp.access.grants.url = page_url(url) + mcp_endpoint.PATH
            services.cluster.url = url_for_others(url)
            yield url
    finally:
        services.cluster.url = None
        services.mcp.access.grants.url = None
        ticking.cancel()
        server.request_stop()
        await running
        mcp.cancel()
        with suppress(asyncio.CancelledError):
            await mcp


def _warn_of_few_files(services: Services) -> None:
    """The limits promise room for the owner only if the process may open that many files."""
    gateway = services.config.settings.gateway
    allowed = gateway.limits.unauthenticated + len(gateway.auth.tokens) * gateway.limits.connections
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < allowed + _OTHER_FILES:
        _log.warning(
            "only %d files may be open, and gateway.limits allows %d connections besides the owner's:"
            " raise the limit (ulimit -n), or lower gateway.limits",
            files,
            allowed,
        )


def require_secret(gateway: GatewaySettings) -> None:
    """Refuse to listen where other machines can connect without a secret of the owner's choice."""
    secret = gateway.auth.password if gateway.auth.mode == "password" else gateway.auth.token
    if gateway.bind not in LOCAL_NAMES and secret is None:
        raise BadInput(
            f"gateway.bind is {gateway.bind}, which other machines can reach, and no token is set.",
            fix=f"Set HOBNOB_TOKEN in the environment, or: {config_set('gateway.bind', '127.0.0.1')}",
        )


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to every address of `host`; port 0 takes a free one. Raises BadInput."""
    opened: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in dict.fromkeys(found):
            opened.append(socket.socket(family, kind, protocol))
            opened[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                opened[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = opened[0].getsockname()[1] if len(opened) > 1 else port
            opened[-1].bind((place[0], chosen, *place[2:]))
    except OSError as error:
        for each in opened:
            each.close()
        raise BadInput(
            f"Cannot listen on {host}:{port}: {_reason(error)}.", fix=_bind_fix(error, port)
        ) from None
    return opened


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program uses this port"
    return (error.strerror or str(error)).lower()


def _bind_fix(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Stop that program, or choose another port: hobnob config set gateway.port {port % 65535 + 1}"
    if error.errno == errno.EACCES:
        return "Choose a port above 1023: hobnob config set gateway.port 4626"
    return "Listen on this machine only: hobnob config set gateway.bind 127.0.0.1"


class Server(uvicorn.Server):
    """A server that stops at once, and wakes up once a second instead of ten times."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop_requested = asyncio.Event()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stop_requested.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drop the connections that do not end in time; a second later uvicorn cancels their requests."""
        loop = asyncio.get_running_loop()
        dropping = loop.call_later(_CLOSE_S, self._drop_connections)
        await super().shutdown(sockets)
        dropping.cancel()

    def _drop_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen several times on each socket: uvloop accepts one connection per turn of the event loop."""
        await super().startup(sockets)
        loop, backlog = asyncio.get_running_loop(), self.config.backlog
        for listener in [each for server in self.servers for each in server.sockets]:
            for _ in range(_LISTENERS - 1):
                copy = socket.socket(fileno=os.dup(listener.fileno()))
                self.servers.append(await loop.create_server(self._protocol, sock=copy, backlog=backlog))

    def _protocol(self) -> asyncio.Protocol:
        make = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def request_stop(self) -> None:
        self.should_exit = True
        self._stop_requested.set()


def announce_shutdown(services: Services, reason: str) -> None:
    """Tell connected clients that the gateway stops, so that they reconnect later."""
    services.clients.broadcast(
        event_frames.encode_open("shutdown", {"reason": reason, "restartExpectedMs": None})
    )


async def _tick(services: Services) -> None:
    """Broadcast periodic ticks and health, and changes of presence."""
    changed = asyncio.Event()
    services.clients.on_change = changed.set
    tick_at, health_at = now_ms() + websocket.TICK_MS, now_ms() + _HEALTH_MS
    while True:
        try:
            async with asyncio.timeout(max(0.0, (min(tick_at, health_at) - now_ms()) / 1000)):
                await changed.wait()
            await asyncio.sleep(_PRESENCE_S)  # clients often connect in bursts
            changed.clear()
            presence = {"presence": services.clients.presence(), "total": len(services.clients)}
            services.clients.broadcast(event_frames.encode_open("presence", presence), subscribers_only=True)
        except TimeoutError:
            pass
        if now_ms() >= tick_at:
            tick_at += websocket.TICK_MS
            services.clients.broadcast(event_frames.encode_open("tick", {"ts": now_ms()}))
        if now_ms() >= health_at:
            health_at += _HEALTH_MS
            health = {"ok": True, "ts": now_ms(), "runningTurns": services.running_turns()}
            services.clients.broadcast(event_frames.encode_open("health", health), subscribers_only=True)
