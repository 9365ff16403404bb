"""Kills a gateway at every crash point of a join or a yield, and starts it again, each in its own process.

Prints the name of each crash point when its cases are done. The file `result` in the folder of the point
has a list with one case for each visit.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from hobnob import crashpoints
from hobnob.store import entries, exchanges, sessions, turns
from hobnob.testing import OWNER, calls, rehearse, say
from hobnob.tools import Context, tool
from hobnob.types import text_of

ANN = "agent:ann:main"
TASKS = ("one", "two", "three")
SPAWNS = {
    "toolCalls": [
        {"name": "sessions_spawn", "arguments": {"task": task, "collect": True, "groupId": "g"}}
        for task in TASKS
    ]
}
SCENES: dict[str, list[Any]] = {
    "join": [SPAWNS, calls("agents_wait", groupId="g", timeoutSeconds=600), "Joined."],
    "yield": [SPAWNS, calls("sessions_yield"), "Woken.", "Woken twice."],
}
POINTS = (*crashpoints.TURN_POINTS, "after-spawn", *crashpoints.JOIN_POINTS)
VISITS = 3


@tool(repeatable=True)
async def hold(context: Context) -> str:
    """Wait until somebody waits for the sub-agents."""
    while True:
        for verb in (exchanges.awaited_by, exchanges.yielded):
            if await STORES[0].read(verb, ANN):
                return "somebody waits"
        await asyncio.sleep(0.005)


STORES: list[Any] = []


async def live(home: Path, scene: str) -> None:
    """Go on with the scene from wherever it is, as a client that tries again would, and wait for its end."""
    settings = {
        "agents": {"list": [{"id": "ann", "default": True}]},
        "models": {"rehearsal": {"scripts": {ANN: SCENES[scene], "*": [calls("hold"), "done"]}}},
    }
    async with rehearse(home, settings, tools=[hold]) as gateway:
        STORES[:] = [gateway.store]
        turn = await say(gateway, "Go.", ANN, idempotency_key="go")
        read, spawned = gateway.store.read, await gateway.store.read(exchanges.spawned_by, ANN)
        for exchange in spawned:
            for child in await read(exchanges.turns, exchange.exchange_id):
                await gateway.sessions.wait(child.turn_id, 60)
        while found := await read(turns.open_of, ANN):
            for each in found:
                await gateway.sessions.wait(each.turn_id, 60)
        session = await read(sessions.get, ANN)
        kept = [e.message for e in await read(entries.history, session.session_id)]
        report = {
            "turn": [turn.outcome, turn.reply],
            "exchanges": (await gateway.sessions.queries.exchanges(OWNER))["count"],
            "said": [text_of(m) for m in kept if m["role"] == "assistant" and text_of(m)],
            "inputs": [text_of(m) for m in kept if m["role"] == "user"],
            "waited": [json.loads(text_of(m)) for m in kept if m.get("toolName") == "agents_wait"],
        }
        (home / "report").write_text(json.dumps(report))


def in_child(home: Path, scene: str, at: str | None) -> bool:
    """Live in a child process. True when it was killed."""
    pid = os.fork()
    if pid == 0:
        crashpoints.armed = at
        asyncio.run(live(home, scene))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def main(base: Path, scene: str) -> None:
    for point in POINTS:
        cases: list[dict[str, Any]] = []
        while len(cases) < VISITS and (not cases or cases[-1]["killed"]):  # else it is not visited that often
            visit = len(cases) + 1
            home = base / point / str(visit)
            home.mkdir(parents=True)
            killed = in_child(home, scene, f"{point}:{visit}")
            if killed:
                in_child(home, scene, None)
            cases.append({"killed": killed, **json.loads((home / "report").read_text())})
        (base / point / "result").write_text(json.dumps(cases))
        print(point, flush=True)  # noqa: T201 - the test reads it


main(Path(sys.argv[1]), sys.argv[2])
