"""Connections of commands to a gateway: the running one, else one opened in this process.

Both take the same RPC methods, so a command is written once. The gateway and the client are imported when a
connection is opened, so that commands without one start faster.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hobnob import statedir
from hobnob.cli import output
from hobnob.cli.endpoint import Endpoint, salvaged_token
from hobnob.errors import BadConfig, GatewayLost, GatewayUnreachable, RpcFailed, StoreInUse
from hobnob.records import Struct

if TYPE_CHECKING:
    from hobnob.client import Client
    from hobnob.events import Change
    from hobnob.gateway import Gateway
    from hobnob.types import Exchange

Payload = dict[str, Any]
T = TypeVar("T")
_GRACE_S = 2.0
_CONNECT_TIMEOUT_S = 5.0  # for another command that has the store open, or a gateway that is starting
_POLL_INTERVAL_S = 0.05
_RECONNECT_INTERVAL_S = 0.5
PATIENCE_S = 120.0  # how long a command waits for a gateway that went away
_LOST = "[dim]— connection lost; waiting for the gateway —[/]"

# What to do about a refusal, as a command. The gateway's own `fix` names a tool or a setting.
_CLI_FIXES = {
    "session.not_found": "`hobnob sessions list` shows the sessions.",
    "session.archived": "`hobnob sessions restore KEY` restores it.",
    "send_policy.denied": "`hobnob explain owner send KEY` shows which rule and how to change it.",
}


class RemoteGateway:
    """The running gateway, over its WebSocket."""

    is_local: Literal[False] = False

    def __init__(self, stack: AsyncExitStack, endpoint: Endpoint, client: Client) -> None:
        self._stack = stack
        self._endpoint = endpoint
        self._client = client

    async def call(self, method: str, **params: Any) -> Payload:
        with _cli_fixes():
            return await self._client.call(method, **params)

    async def reconnect(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until the gateway is there again, also at another address. Raises GatewayLost."""
        output.console(stderr=True).print(_LOST)
        deadline = asyncio.get_running_loop().time() + patience_s
        while asyncio.get_running_loop().time() < deadline:
            with suppress(GatewayUnreachable, GatewayLost):
                if found := locate(self._endpoint):
                    self._client = await _open_client(self._stack, found)
                    return
            await asyncio.sleep(_RECONNECT_INTERVAL_S)
        raise GatewayLost(f"The gateway did not come back within {patience_s:.0f} seconds.")

    async def answers(self, method: str, **params: Any) -> AsyncIterator[Payload]:
        with _cli_fixes():
            async for answer in self._client.answers(method, **params):
                yield answer

    async def next_event(self) -> Payload | None:
        """The next event; None when the connection is lost."""
        return await self._client.events.get()

    def follow(self, key: str, after: int) -> AsyncIterator[Payload]:
        """The messages of a session as they are added, also across restarts of the gateway."""
        self._client.on_lost = lambda: output.console(stderr=True).print(_LOST)
        return self._client.follow(key, after)

    async def on_interrupt(self, key: str, run_id: str) -> None:
        """The user stopped waiting. The gateway goes on with the turn."""


class LocalGateway:
    """A gateway in this process, open for as long as the command runs."""

    is_local: Literal[True] = True

    def __init__(self, gateway: Gateway) -> None:
        from hobnob.gateway import api_services

        self.gateway = gateway
        self._services = api_services(gateway)
        self._events = gateway.hub.subscribe()
        self._frames: list[Payload] = []

    async def call(self, method: str, **params: Any) -> Payload:
        return [answer async for answer in self.answers(method, **params)][-1]

    async def answers(self, method: str, **params: Any) -> AsyncIterator[Payload]:
        from hobnob.api import rpc
        from hobnob.client import failure
        from hobnob.policy import Operator

        early: asyncio.Queue[Payload] = asyncio.Queue()
        call = rpc.Call(self._services, Operator(), early.put)
        last = asyncio.ensure_future(rpc.dispatch(call, method, params))
        try:
            async for answer in items_until(last, early.get):
                yield answer
            answer = await last
        finally:
            last.cancel()
        with _cli_fixes():
            if not answer["ok"]:
                raise failure(answer)
        yield answer["payload"]

    async def next_event(self) -> Payload | None:
        """The next event as an event frame; None when this subscriber fell behind."""
        from hobnob.api.event_frames import run_frames

        while not self._frames:
            event = await self._events.next()
            if event is None:
                return None
            self._frames += [{"event": name, "payload": payload} for name, payload in run_frames(event)]
        return self._frames.pop(0)

    async def on_interrupt(self, key: str, run_id: str) -> None:
        """The user stopped waiting. Abort the turn: it cannot go on without this process."""
        from hobnob.policy import Operator

        sessions = self.gateway.sessions
        await sessions.abort(Operator(), key, turn_id=run_id, reason="stopped by hand")
        await sessions.wait(run_id, _GRACE_S)

    def exchange_ended(self, exchange_id: str) -> asyncio.Future[Exchange]:
        """A future of the exchange, set when it ends."""
        from hobnob.events import ExchangeChanged

        ended: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()

        def on_changes(changes: list[Change]) -> None:
            for change in changes:
                if isinstance(change, ExchangeChanged) and change.exchange.exchange_id == exchange_id:
                    if change.exchange.state != "open" and not ended.done():
                        ended.set_result(change.exchange)

        self.gateway.store.watch(on_changes)
        return ended


Connection = RemoteGateway | LocalGateway


def call(endpoint: Endpoint, method: str, **params: Any) -> Payload:
    """Call one method. A local gateway runs no turns for it."""

    async def act(gateway: Connection) -> Payload:
        return await gateway.call(method, **params)

    return run(endpoint, act)


def run(
    endpoint: Endpoint, act: Callable[[Connection], Coroutine[Any, Any, T]], *, run_turns: bool = False
) -> T:
    """Run `act` on a connection. A local gateway runs turns only with `run_turns`."""

    async def main() -> T:
        async with open_connection(endpoint, run_turns=run_turns) as gateway:
            return await act(gateway)

    return asyncio.run(main())


@asynccontextmanager
async def open_connection(endpoint: Endpoint, *, run_turns: bool = False) -> AsyncIterator[Connection]:
    """Connect to the running gateway, else open one here; that one runs turns only with `run_turns`.

    Only one process may have the store open, so commands without a gateway wait for each other.
    """
    async with AsyncExitStack() as stack:
        yield await _connect(stack, endpoint, run_turns=run_turns)


class Located(Struct, frozen=True):
    """A running gateway: its address, the token for it, and where that comes from."""

    url: str
    token: str
    token_origin: str
    pid: int | None = None


def locate(endpoint: Endpoint) -> Located | None:
    """The running gateway of an endpoint, None if there is none. Raises BadConfig, BadInput.

    A configuration file with errors does not matter while a gateway is running.
    """
    from hobnob.api.server import read_address_file
    from hobnob.store import holders

    if endpoint.address is not None:
        return Located(endpoint.address, *endpoint.token())
    try:
        loaded = endpoint.config
    except BadConfig as problem:
        url, token = read_address_file(statedir.home(os.environ), None), salvaged_token(endpoint)
        if url is None or token is None:
            raise
        if not endpoint.noted:
            output.note(
                f"{problem.source} has errors (`hobnob doctor`). The running gateway keeps its settings."
            )
        endpoint.noted = True
        return Located(url, token, "the state directory")
    for pid in holders(loaded.store_url):  # on PostgreSQL several, of which one has this state directory
        if pid and (url := read_address_file(loaded.home, pid)):
            return Located(url, *endpoint.token(), pid)
    return None


def require_running(endpoint: Endpoint) -> Located:
    """The running gateway. Raises GatewayUnreachable."""
    found = locate(endpoint)
    if found is None:
        _refuse_elsewhere(endpoint)
        raise GatewayUnreachable("No gateway is running.", fix="Start one with `hobnob serve`.")
    return found


def _refuse_elsewhere(endpoint: Endpoint) -> None:
    """Raise GatewayUnreachable if gateways with other state directories use the database.

    No token is sent to an address that only the database names: the user gives it.
    """
    from hobnob.store import is_postgres

    if endpoint.address is not None or not is_postgres(url := endpoint.config.store_url):
        return
    from hobnob.cluster.members import read_all  # not at the top: it needs psycopg

    if running := [each for each in read_all(url) if each.url and not each.silent]:
        named = ", ".join(f"{each.name} ({each.url} on {each.host})" for each in running[:5])
        raise GatewayUnreachable(
            f"No gateway runs with this state directory. The database is used by: {named}.",
            fix="Start one here with `hobnob serve`, or name one with --url and --token-file.",
        )


async def _open_client(stack: AsyncExitStack, found: Located) -> Client:
    """Connect to a running gateway. A refused token is reported with its origin."""
    from hobnob.client import open_client

    try:
        return await stack.enter_async_context(open_client(found.url, found.token))
    except RpcFailed as problem:
        if not (problem.reason or "").startswith("AUTH_TOKEN"):
            raise
        fix = f"This command took the token from {found.token_origin}. {problem.fix or ''}".strip()
        raise RpcFailed(problem.message, reason=problem.reason, fix=fix) from None


async def _connect(stack: AsyncExitStack, endpoint: Endpoint, *, run_turns: bool) -> Connection:
    from hobnob.gateway import open_gateway
    from hobnob.store import holder, shown

    deadline = asyncio.get_running_loop().time() + _CONNECT_TIMEOUT_S
    while True:
        if found := locate(endpoint):
            return RemoteGateway(stack, endpoint, await _open_client(stack, found))
        loaded = endpoint.config
        pid = holder(loaded.store_url)
        if pid is None:
            with suppress(StoreInUse):  # another process opened it since
                opened = open_gateway(loaded, grace_s=_GRACE_S, working=run_turns, scheduling=False)
                return LocalGateway(await stack.enter_async_context(opened))
        _refuse_elsewhere(endpoint)
        if asyncio.get_running_loop().time() > deadline:
            raise StoreInUse(shown(loaded.store_url), pid)
        await asyncio.sleep(_POLL_INTERVAL_S)  # a file lock sends no event when it is released


@asynccontextmanager
async def open_dry_run(file: Path) -> AsyncIterator[LocalGateway]:
    """A gateway with the settings of a file on a copy of the store, also while the real one is running."""
    from hobnob import config
    from hobnob.gateway import open_gateway
    from hobnob.store import is_postgres, sqlite_path
    from hobnob.store.engine import sqlite_file
    from hobnob.store.engine.copying import copy_store

    with tempfile.TemporaryDirectory(prefix="hobnob-dry-run-") as folder:
        loaded, copy = config.load(file), Path(folder, "hobnob.db")
        if is_postgres(loaded.store_url):
            await asyncio.to_thread(copy_store, loaded.store_url, f"sqlite:///{copy}")
        elif (path := sqlite_path(loaded.store_url)).exists():
            sqlite_file.backup(path, copy)
        loaded = config.load(file, flags={"store.url": f"sqlite:///{copy}"})
        loaded.home = Path(folder)
        async with open_gateway(loaded, grace_s=_GRACE_S, working=False) as gateway:
            yield LocalGateway(gateway)


async def count_open_exchanges(gateway: Connection) -> int:
    """How many exchanges stop with this command. None do when the gateway is another process."""
    if not gateway.is_local:
        return 0
    page = await gateway.call("exchanges.list", limit=200)
    return sum(exchange["state"] == "open" for exchange in page["exchanges"])


async def items_until(
    done: asyncio.Future[Any], next_item: Callable[[], Awaitable[Any]]
) -> AsyncIterator[Any]:
    """Yield what `next_item` returns until `done` is set. After a None no items follow; `done` still does."""
    while True:
        item = asyncio.ensure_future(next_item())
        try:
            await asyncio.wait([item, done], return_when=asyncio.FIRST_COMPLETED)
            if not item.done():
                return
            if item.result() is None:
                await asyncio.wait([done])
                return
            yield item.result()
        finally:
            item.cancel()


@contextmanager
def _cli_fixes() -> Iterator[None]:
    try:
        yield
    except RpcFailed as problem:
        fix = _CLI_FIXES.get(problem.reason or "", problem.fix)
        raise RpcFailed(problem.message, reason=problem.reason, fix=fix) from None
