"""Kills a gateway at every crash point of a send or a spawn, and starts it again, each in its own process.

Prints the name of each crash point when its cases are done. The file `result` in the folder of the point
has a list with one case for each visit: how the exchange ended, and what is in the transcripts.
"""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from hobnob import crashpoints
from hobnob.store import entries, sessions, turns
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say
from hobnob.types import Turn

TEAM = {
    "agents": {"list": [{"id": "ann", "default": True}, {"id": "bob"}]},
    "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
}
SEND = {
    "agent:ann:main": [
        calls("sessions_send", agentId="bob", message="What is it?"),
        "Ann is done.",
        "And what else?",
        "REPLY_SKIP",
    ],
    "agent:bob:main": ["Bob is here.", "It is 42.", "Nothing else.", "Bob told Ann that it is 42."],
}
SPAWN = {
    "agent:ann:main": ["Ann is here.", calls("sessions_spawn", task="Count."), "Ann is done."],
    "*": ["I counted to 42.", "Result: 42\nNotes: it took a while"],
}
# Each scene with the session that is spoken to first, so that there is a chat to announce to.
SCENES: dict[str, tuple[dict[str, Any], str]] = {
    "send": (SEND, "agent:bob:main"),
    "spawn": (SPAWN, "agent:ann:main"),
}
VISITS = 6


async def live(home: Path, scene: str) -> None:
    """Go on with the scene from wherever it is, as a client that tries again would, and wait for its end."""
    scripts, chat = SCENES[scene]
    settings = TEAM | {"models": {"rehearsal": {"scripts": scripts}}}
    async with rehearse(home, settings) as gateway:
        turn = await say(gateway, "Go.", "agent:ann:main", idempotency_key="go")
        page = await gateway.sessions.queries.exchanges(OWNER)
        ended = await exchange_ended(gateway, page["exchanges"][0]["id"], 60)
        read = gateway.store.read
        pages: dict[str, Any] = {}
        for key in {chat, "agent:ann:main", ended["target"]}:
            session = await read(sessions.find, key)
            assert session is not None
            await settled(gateway.sessions, await read(turns.open_of, key))
            kept = await read(entries.history, session.session_id)
            pages[key] = [e.message | {"seq": e.seq} for e in kept]
        report = {
            "turn": [turn.outcome, turn.reply],
            "exchanges": page["count"],
            "exchange": ended,
            "pages": pages,
            "posted": [d.text for d in (await gateway.sessions.queries.deliveries(OWNER, chat))[1]],
        }
        (home / "report").write_text(json.dumps(report))


async def settled(known: Any, open_turns: list[Turn]) -> None:
    for turn in open_turns:
        await known.wait(turn.turn_id, 60)


def in_child(home: Path, scene: str, at: str | None) -> bool:
    """Live in a child process. True when it was killed."""
    pid = os.fork()
    if pid == 0:
        crashpoints.armed = at
        asyncio.run(live(home, scene))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def run_case(begun: Path, home: Path, scene: str, at: str) -> dict[str, Any]:
    shutil.copytree(begun, home)
    killed = in_child(home, scene, at)
    if killed:
        in_child(home, scene, None)
    return {"killed": killed, **json.loads((home / "report").read_text())}


async def begin(home: Path, scene: str) -> None:
    scripts, chat = SCENES[scene]
    async with rehearse(home, TEAM | {"models": {"rehearsal": {"scripts": scripts}}}) as gateway:
        await say(gateway, "Hello?", chat)


def main(base: Path, scene: str) -> None:
    begun = base / "begun"
    begun.mkdir(parents=True)
    asyncio.run(begin(begun, scene))
    for point in crashpoints.TURN_POINTS + crashpoints.EXCHANGE_POINTS:
        cases: list[dict[str, Any]] = []
        while len(cases) < VISITS and (not cases or cases[-1]["killed"]):  # else it is not visited that often
            visit = len(cases) + 1
            cases.append(run_case(begun, base / point / str(visit), scene, f"{point}:{visit}"))
        (base / point / "result").write_text(json.dumps(cases))
        print(point, flush=True)  # noqa: T201 - the test reads it


main(Path(sys.argv[1]), sys.argv[2])
