"""How fast a join wakes: from the end of its last sub-agent to the answer of `agents_wait`."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from bench import Figure
from bench.session_tools import ToolCaller
from hobnob.events import Change, TurnChanged
from hobnob.gateway import Gateway
from hobnob.store import sessions
from hobnob.testing import rehearse, say
from hobnob.tools import Context, Tool, tool

CHILDREN, TIMES = 200, 5
SETTINGS: dict[str, Any] = {
    "agents": {
        "list": [{"id": "ann", "default": True}],
        "defaults": {"subagents": {"maxConcurrent": CHILDREN}},
    },
    "tools": {"swarm": {"maxChildrenPerGroup": CHILDREN, "maxTotalPerGroup": CHILDREN}},
    "models": {
        "rehearsal": {
            "scripts": {"agent:ann:main": [], "*": [{"toolCalls": [{"name": "hold"}]}, {"text": "done"}]}
        }
    },
}


def run() -> list[Figure]:
    return uvloop.run(_run())


async def _run() -> list[Figure]:
    gate = asyncio.Event()
    with tempfile.TemporaryDirectory() as folder:
        async with rehearse(Path(folder), SETTINGS, tools=[_hold(gate)]) as gateway:
            await say(gateway, "hi", "agent:ann:main")
            commits = [await _commit(gateway) for _ in range(20)]
            caller = await ToolCaller.of(gateway)
            wakes = [await _join(gateway, caller, gate, f"g{n}") for n in range(TIMES)]
    commit, wake = statistics.median(commits), statistics.median(wakes)
    return [
        Figure(
            f"agents_wait answers after the last of {CHILDREN} sub-agents has ended",
            f"{wake * 1000:.1f} ms",
            f"{commit * 1000:.2f} ms, a commit",
            wake / commit,
            "< 50 ms",
            wake < 0.05,
        )
    ]


def _hold(gate: asyncio.Event) -> Tool:
    @tool(repeatable=True)
    async def hold(context: Context) -> str:
        """Wait until all of the group are there."""
        await gate.wait()
        return "go"

    return hold


async def _commit(gateway: Gateway) -> float:
    start = time.perf_counter()
    await gateway.store.write(sessions.touch, "agent:ann:main")
    return time.perf_counter() - start


async def _join(gateway: Gateway, caller: ToolCaller, gate: asyncio.Event, group: str) -> float:
    """Spawn a group, wait for all of it, and measure from the last end to the answer."""
    gate.clear()
    for n in range(CHILDREN):
        await caller.use("sessions_spawn", task=f"task {n}", collect=True, groupId=group)
    last_end = 0.0

    def on_changes(changes: list[Change]) -> None:
        nonlocal last_end
        if any(isinstance(c, TurnChanged) and c.turn.outcome and c.turn.pool == "subagent" for c in changes):
            last_end = time.perf_counter()

    gateway.store.watch(on_changes)
    waiting = asyncio.ensure_future(caller.use("agents_wait", groupId=group, timeoutSeconds=600))
    gate.set()
    answer = await waiting
    took = time.perf_counter() - last_end
    assert (answer["status"], len(answer["completed"])) == ("ok", CHILDREN), answer["status"]
    return took
