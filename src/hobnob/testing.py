"""Helpers for tests: a real gateway on the rehearsal model, in a directory of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from hobnob import config, keys
from hobnob.events import Change, ExchangeChanged
from hobnob.gateway import Gateway, open_gateway
from hobnob.policy import Operator
from hobnob.sessions import InboundMessage
from hobnob.tools import Context, Tool, Toolbox
from hobnob.types import Session, Turn, new_id

OWNER = Operator()


@asynccontextmanager
async def rehearse(
    home: Path, settings: dict[str, Any] | None = None, *, tools: Iterable[Tool] = (), grace_s: float = 0
) -> AsyncIterator[Gateway]:
    """Open a gateway with these settings (as in a configuration file) and extra tools for its agents.

    Opened again on the same `home`, it continues with the same store.
    """
    file = home / "hobnob.json5"
    file.write_bytes(orjson.dumps(settings or {}))
    loaded = config.load(file, env={"HOBNOB_HOME": str(home)})
    async with open_gateway(loaded, env={}, tools=tools, grace_s=grace_s) as gateway:
        yield gateway


def script(*steps: Any, session: str = "main") -> dict[str, Any]:
    """Settings that script the model of a session; a step is a text or a step as in the configuration."""
    return {"models": {"rehearsal": {"scripts": {session: list(steps)}}}}


def calls(name: str, text: str = "", /, **arguments: Any) -> dict[str, Any]:
    """A script step that calls a tool."""
    return {"text": text, "toolCalls": [{"name": name, "arguments": arguments}]}


async def run_tool(tool: Tool, /, *, agent_id: str = "main", **arguments: Any) -> Any:
    """Call a tool alone, as a model would in the main session of an agent. Returns what the model reads:

    an object when that is one, else the text. Errors are objects with `status` and `error`.
    """
    session = Session.of(keys.parse(f"agent:{agent_id}:main"))
    context = Context(session, Turn.of(session, f"call {tool.name}"), new_id())
    result = await Toolbox([tool], session).call(context, tool.name, arguments)
    try:
        return orjson.loads(result.text)
    except orjson.JSONDecodeError:
        return result.text


async def exchange_ended(gateway: Gateway, exchange_id: str, timeout_s: float = 60) -> dict[str, Any]:
    """Wait until an exchange has ended. Returns it with its steps."""
    changed = asyncio.Event()

    def on_changes(changes: list[Change]) -> None:
        if any(isinstance(c, ExchangeChanged) and c.exchange.exchange_id == exchange_id for c in changes):
            changed.set()

    gateway.store.watch(on_changes)
    async with asyncio.timeout(timeout_s):
        while True:
            changed.clear()
            found = await gateway.sessions.queries.exchange(OWNER, exchange_id)
            if found["state"] != "open":
                return found
            await changed.wait()


async def say(gateway: Gateway, text: str, session: str = "main", **options: Any) -> Turn:
    """Send as the owner and wait for the end of the turn."""
    turn = await gateway.sessions.send(OWNER, session, InboundMessage(text, **options))
    return await gateway.sessions.wait(turn.turn_id, 60)
