"""The two gateways a command can talk to. They are asked the same way; `Here` is asked without a wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any, Literal

from hobnob.api import rpc
from hobnob.api.auth import owner_token
from hobnob.api.event_frames import run_frames
from hobnob.api.server import read_address_file
from hobnob.cli import output
from hobnob.cli.reach import until
from hobnob.client import Client, failure, open_client
from hobnob.config import Config
from hobnob.errors import RpcFailed, StoreInUse
from hobnob.events import ExchangeChanged
from hobnob.gateway import Gateway, api_services, open_gateway
from hobnob.policy import Operator
from hobnob.store import sqlite_path
from hobnob.store.engine import sqlite_file
from hobnob.types import Exchange

Payload = dict[str, Any]
GRACE_S = 2.0
_PATIENCE_S = 5.0  # for a command that has the store open, or a gateway that is about to listen
_LOOK_EVERY_S = 0.05

# What to do about a failure, said as somebody at the command line can do it.
_HINTS = {
    "session.not_found": "`hobnob sessions list` shows those there are.",
    "session.archived": "`hobnob sessions restore KEY` brings it back.",
    "send_policy.denied": "`hobnob explain owner send KEY` shows which rule and how to change it.",
}


class There:
    """The gateway that is running."""

    here: Literal[False] = False

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, method: str, **params: Any) -> Payload:
        with _worded():
            return await self._client.call(method, **params)

    async def answers(self, method: str, **params: Any) -> AsyncIterator[Payload]:
        with _worded():
            async for answer in self._client.answers(method, **params):
                yield answer

    async def event(self) -> Payload | None:
        """The next event; None when the gateway is gone."""
        return await self._client.events.get()

    def follow(self, key: str, after: int) -> AsyncIterator[Payload]:
        """The messages of a session as they are added, also when the gateway is restarted meanwhile."""
        note = "[dim]— the gateway is gone; waiting for it to come back —[/]"
        self._client.on_lost = lambda: output.console(stderr=True).print(note)
        return self._client.follow(key, after)

    async def stopped_by_hand(self, key: str, run_id: str) -> None:
        """Whoever waited has left. The turn goes on."""


class Here:
    """A gateway in this process, for as long as the command takes."""

    here: Literal[True] = True

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._services = api_services(gateway)
        self._heard = gateway.hub.subscribe()
        self._waiting: list[Payload] = []

    async def call(self, method: str, **params: Any) -> Payload:
        return [answer async for answer in self.answers(method, **params)][-1]

    async def answers(self, method: str, **params: Any) -> AsyncIterator[Payload]:
        early: asyncio.Queue[Payload] = asyncio.Queue()
        call = rpc.Call(self._services, Operator(), early.put)
        last = asyncio.ensure_future(rpc.dispatch(call, method, params))
        try:
            async for answer in until(last, early.get):
                yield answer
            answer = await last
        finally:
            last.cancel()
        with _worded():
            if not answer["ok"]:
                raise failure(answer)
        yield answer["payload"]

    async def event(self) -> Payload | None:
        """The next event, as the wire would carry it; None when we fell behind."""
        while not self._waiting:
            event = await self._heard.next()
            if event is None:
                return None
            self._waiting += [{"event": name, "payload": payload} for name, payload in run_frames(event)]
        return self._waiting.pop(0)

    async def stopped_by_hand(self, key: str, run_id: str) -> None:
        """Whoever waited has left, and with it the only process that could go on with the turn."""
        sessions = self.gateway.sessions
        await sessions.abort(Operator(), key, turn_id=run_id, reason="stopped by hand")
        await sessions.wait(run_id, GRACE_S)

    def exchange(self, exchange_id: str) -> asyncio.Future[Exchange]:
        """The exchange, once it is over."""
        over: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()

        def look(changes: list[Any]) -> None:
            for change in changes:
                if isinstance(change, ExchangeChanged) and change.exchange.exchange_id == exchange_id:
                    if change.exchange.state != "open" and not over.done():
                        over.set_result(change.exchange)

        self.gateway.store.watch(look)
        return over


async def enter(stack: AsyncExitStack, loaded: Config, *, working: bool) -> There | Here:
    path = sqlite_path(loaded.store_url)
    deadline = asyncio.get_running_loop().time() + _PATIENCE_S
    while True:
        pid = sqlite_file.holder(path)
        if pid is None:
            with suppress(StoreInUse):  # somebody was quicker
                opened = open_gateway(loaded, grace_s=GRACE_S, working=working)
                return Here(await stack.enter_async_context(opened))
        elif (url := read_address_file(loaded.home, pid)) is not None:
            return There(await stack.enter_async_context(open_client(url, owner_token(loaded))))
        if asyncio.get_running_loop().time() > deadline:
            raise StoreInUse(str(path), pid)
        await asyncio.sleep(_LOOK_EVERY_S)  # the lock of another process tells nobody when it is free


@contextmanager
def _worded() -> Iterator[None]:
    try:
        yield
    except RpcFailed as problem:
        hint = _HINTS.get(problem.reason or "", problem.fix)
        raise RpcFailed(problem.message, reason=problem.reason, fix=hint) from None
