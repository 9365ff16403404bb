"""For tests of set-ups and tools: a real gateway on the rehearsal model, in a folder of your choice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from hobnob import config
from hobnob.events import Change, ExchangeChanged
from hobnob.gateway import Gateway, open_gateway
from hobnob.policy import Operator
from hobnob.sessions import Message
from hobnob.tools import Tool
from hobnob.types import Turn

OWNER = Operator()


@asynccontextmanager
async def rehearse(
    home: Path, settings: dict[str, Any] | None = None, *, tools: Iterable[Tool] = (), grace_s: float = 0
) -> AsyncIterator[Gateway]:
    """A gateway with these settings, as in a configuration file, whose agents have these tools.

    Opened again on the same folder it goes on where it was.
    """
    file = home / "hobnob.json5"
    file.write_bytes(orjson.dumps(settings or {}))
    loaded = config.load(file, env={"HOBNOB_HOME": str(home)})
    async with open_gateway(loaded, env={}, tools=tools, grace_s=grace_s) as gateway:
        yield gateway


def script(*steps: Any, session: str = "main") -> dict[str, Any]:
    """Settings that have the model play `steps` in a session: a text, or a step as in the configuration."""
    return {"models": {"rehearsal": {"scripts": {session: list(steps)}}}}


def calls(name: str, text: str = "", /, **arguments: Any) -> dict[str, Any]:
    """A step that calls a tool."""
    return {"text": text, "toolCalls": [{"name": name, "arguments": arguments}]}


async def exchange_ended(gateway: Gateway, exchange_id: str, timeout_s: float = 15) -> dict[str, Any]:
    """Wait until an exchange is over. Returns it with its steps."""
    news = asyncio.Event()

    def changed(changes: list[Change]) -> None:
        if any(isinstance(c, ExchangeChanged) and c.exchange.exchange_id == exchange_id for c in changes):
            news.set()

    gateway.store.watch(changed)
    async with asyncio.timeout(timeout_s):
        while True:
            news.clear()
            found = await gateway.sessions.queries.exchange(OWNER, exchange_id)
            if found["state"] != "open":
                return found
            await news.wait()


async def say(gateway: Gateway, text: str, session: str = "main", **options: Any) -> Turn:
    """Send as the owner and wait for the end of the turn."""
    turn = await gateway.sessions.send(OWNER, session, Message(text, **options))
    return await gateway.sessions.wait(turn.turn_id, 15)
