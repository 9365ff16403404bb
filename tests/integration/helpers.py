"""Settings with three agents, and the steps tests have in common: call a tool, spawn, read a transcript."""

import asyncio
from typing import Any

import orjson
from tests.waiting import LIMIT_S

from hobnob.api import methods as methods  # for the methods it registers
from hobnob.api import rpc
from hobnob.gateway import Gateway, api_services
from hobnob.keys import parse
from hobnob.store import Tx, entries, sessions, turns
from hobnob.testing import OWNER, exchange_ended, say
from hobnob.tools import Context, Tool, tool
from hobnob.types import Session, text_of

ANN, BOB, EVE = "agent:ann:main", "agent:bob:main", "agent:eve:main"


def three_agents(scripts: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Settings with three agents that see everything."""
    return {
        "agents": {"list": [{"id": "ann", "default": True}, {"id": "bob"}, {"id": "eve"}]},
        "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
        "models": {"rehearsal": {"scripts": scripts or {}}},
    } | more


def spawning_agents(
    scripts: dict[str, Any] | None = None, subagents: Any = None, **more: Any
) -> dict[str, Any]:
    """Three agents of which ann may spawn bob. The script `*` is for children."""
    settings = three_agents({ANN: [], BOB: []} | (scripts or {}), **more)
    settings["agents"]["list"][0]["subagents"] = {"allowAgents": ["bob"]}
    settings["agents"]["defaults"] = {"subagents": subagents or {}}
    return settings


async def use(gateway: Gateway, tool: str, session: str = ANN, /, **arguments: Any) -> dict[str, Any]:
    """Have the agent of a session call a tool, in a real turn. Returns what the tool gave back."""
    turn = await say(gateway, f"call {tool} {orjson.dumps(arguments).decode()}", session)
    kept = await gateway.store.read(entries.history, turn.session_id, limit=50)
    results = [e.message for e in kept if e.role == "toolResult" and e.turn_id == turn.turn_id]
    answer: dict[str, Any] = orjson.loads(text_of(results[-1]))
    return answer


async def transcript(gateway: Gateway, key: str) -> list[dict[str, Any]]:
    session = await gateway.store.read(sessions.get, key)
    return [e.message for e in await gateway.store.read(entries.history, session.session_id)]


async def texts(gateway: Gateway, key: str, role: str) -> list[str]:
    return [text_of(m) for m in await transcript(gateway, key) if m["role"] == role]


async def create_sessions(gateway: Gateway, *keys: str, **fields: Any) -> list[Session]:
    """New sessions; the first was used longest ago."""

    def make(tx: Tx) -> list[Session]:
        times = range(1_000, 1_000 + len(keys))
        return [
            sessions.create(tx, Session.of(parse(key), created_at_ms=at, updated_at_ms=at, **fields))
            for key, at in zip(keys, times, strict=True)
        ]

    return await gateway.store.write(make)


async def append_messages(gateway: Gateway, session: Session, *messages: dict[str, Any] | str) -> None:
    for message in messages:
        whole = message if isinstance(message, dict) else {"role": "user", "content": message}
        await gateway.store.write(entries.append, session.session_id, whole)


def keys_in(answer: dict[str, Any]) -> list[str]:
    return [row["key"] for row in answer["sessions"]]


async def wait_until_idle(gateway: Gateway, key: str) -> None:
    """Until a session has no open turn, also none that the end of another turn started."""
    while found := await gateway.store.read(turns.open_of, key):
        for turn in found:
            await gateway.sessions.wait(turn.turn_id, LIMIT_S)


async def spawn_and_wait(gateway: Gateway, session: str = ANN, /, **arguments: Any) -> dict[str, Any]:
    """Spawn a sub-agent, and wait for its report. Returns its exchange, with the report."""
    answer = await use(gateway, "sessions_spawn", session, **arguments)
    assert answer["status"] == "accepted", answer
    ended = await exchange_ended(gateway, answer["exchangeId"], LIMIT_S)
    await wait_until_idle(gateway, session)
    return ended | {"report": (await texts(gateway, session, "user"))[-1]}


async def call_method(gateway: Gateway, method: str, **params: Any) -> dict[str, Any]:
    """Call an RPC method as the owner."""

    async def early(_: Any) -> None:
        pass

    return await rpc.dispatch(rpc.Call(api_services(gateway), OWNER, early), method, params)


class Gate:
    """A tool `hold` that stays in its call until the gate is opened."""

    def __init__(self) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()

        @tool(repeatable=True)
        async def hold(context: Context) -> str:
            """Wait at the gate."""
            self.reached.set()
            await self.open.wait()
            return "through"

        self.tool: Tool = hold
