"""The cost of the session tools with a model without delay. The floor is one durable commit."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
import uvloop

from bench import Figure
from hobnob.gateway import Gateway
from hobnob.keys import parse
from hobnob.requests import SearchQuery
from hobnob.store import Tx, entries, sessions
from hobnob.store.mirror import path_of
from hobnob.testing import OWNER, exchange_ended, rehearse, say
from hobnob.tools import Context, Toolbox
from hobnob.tools.sessions import session_tools
from hobnob.types import Session, new_id

TIMES = 60
SESSIONS = 10_000
SENDS, TARGETS = 200, 50
SETTINGS: dict[str, Any] = {
    "agents": {
        "list": [{"id": "ann", "default": True}, {"id": "bob"}],
        "defaults": {"subagents": {"maxChildrenPerAgent": 20}},
    },
    "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
    "session": {"agentToAgent": {"maxPingPongTurns": 0}, "maintenance": {"mode": "warn"}},
}


def run() -> list[Figure]:
    return uvloop.run(_run())


async def _run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        async with rehearse(Path(folder), SETTINGS) as gateway:
            await say(gateway, "hi", "agent:ann:main")
            await say(gateway, "hi", "agent:bob:main")
            caller = await ToolCaller.of(gateway)
            commit = await _median(lambda i: gateway.store.write(sessions.touch, "agent:ann:main"))
            send = await _median(
                lambda i: caller.use("sessions_send", sessionKey="agent:bob:main", message="say: yes")
            )
            spawn = await _median(caller.spawn)
            fan_out = await _fan_out(gateway, caller)
            last = await gateway.store.write(_fill)
            # brings the full-text index up to date
            await gateway.sessions.queries.search(OWNER, SearchQuery(query="message"))
            await asyncio.to_thread(_wait_for_mirror, path_of(Path(folder), "bob", last))
            listing = await _median(lambda i: caller.use("sessions_list", limit=100, messageLimit=5))
    floor = f"{commit * 1000:.2f} ms, a commit"

    def figure(name: str, value: float, budget_ms: float) -> Figure:
        return Figure(
            name,
            f"{value * 1000:.1f} ms",
            floor,
            value / commit,
            f"< {budget_ms:g} ms",
            value * 1000 < budget_ms,
        )

    return [
        figure("sessions_send to its inline reply", send, 15),
        figure("sessions_spawn accepted", spawn, 10),
        figure(f"sessions_list, 100 rows of {SESSIONS:,} with 5 messages each", listing, 15),
        Figure(
            f"{SENDS} sends into {TARGETS} sessions, all answered in order",
            f"{fan_out:.2f} s",
            floor,
            fan_out / commit,
            "none lost",
            True,
        ),
    ]


class ToolCaller:
    """Calls the tools of an agent without a model, as the agent loop would."""

    def __init__(self, gateway: Gateway, toolbox: Toolbox, context: Context) -> None:
        self._gateway = gateway
        self._toolbox = toolbox
        self._context = context

    @classmethod
    async def of(cls, gateway: Gateway) -> ToolCaller:
        turn = await say(gateway, "hi", "agent:ann:main")
        session = await gateway.store.read(sessions.get, "agent:ann:main")
        tools = session_tools(gateway.sessions, gateway.config)
        return cls(gateway, Toolbox(tools, session), Context(session, turn))

    async def use(self, name: str, **arguments: Any) -> dict[str, Any]:
        context = Context(self._context.session, self._context.turn, new_id())
        result = await self._toolbox.call(context, name, arguments)
        assert not result.is_error, result.text
        answer: dict[str, Any] = orjson.loads(result.text)
        return answer

    async def spawn(self, number: int) -> None:
        answer = await self.use("sessions_spawn", task="say: done")
        if number % 5 == 0:  # else maxChildrenPerAgent is reached
            await exchange_ended(self._gateway, answer["exchangeId"])


async def _median(act: Any) -> float:
    times = []
    for i in range(TIMES):
        start = time.perf_counter()
        await act(i)
        times.append(time.perf_counter() - start)
        await asyncio.sleep(0.02)  # lets the background steps of a send or spawn end, which are not measured
    return statistics.median(times)


async def _fan_out(gateway: Gateway, caller: ToolCaller) -> float:
    for n in range(TARGETS):
        await gateway.sessions.create(OWNER, f"agent:bob:hook:f{n}")
    start = time.perf_counter()
    answers = await asyncio.gather(
        *(
            caller.use("sessions_send", sessionKey=f"agent:bob:hook:f{n % TARGETS}", message=f"say: {n}")
            for n in range(SENDS)
        )
    )
    duration = time.perf_counter() - start
    assert [a["reply"] for a in answers] == [str(n) for n in range(SENDS)]
    return duration


def _wait_for_mirror(file: Path) -> None:
    """Wait until the mirror has written the last transcript, so that its work is not measured."""
    while not file.exists():
        time.sleep(0.1)
    time.sleep(1)


def _fill(tx: Tx) -> str:
    for n in range(SESSIONS):
        session = sessions.create(tx, Session.of(parse(f"agent:bob:hook:x{n}")))
        for i in range(6):
            entries.append(tx, session.session_id, {"role": "user", "content": f"message {i} of {n}"})
    return session.session_id
