"""Agents that may reach each other, and a way to have one of them use a tool."""

from typing import Any

import orjson

from hobnob.gateway import Gateway
from hobnob.store import entries, sessions
from hobnob.testing import say
from hobnob.types import text_of

ANN, BOB, EVE = "agent:ann:main", "agent:bob:main", "agent:eve:main"


def team(scripts: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Settings with three agents that see everything."""
    return {
        "agents": {"list": [{"id": "ann", "default": True}, {"id": "bob"}, {"id": "eve"}]},
        "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
        "models": {"rehearsal": {"scripts": scripts or {}}},
    } | more


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
