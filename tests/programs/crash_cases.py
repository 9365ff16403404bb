"""Kills a gateway at every crash point and starts it again, each time in a process of its own.

Prints the name of each case when it is done. The file `result` in its folder says what was answered, what is
in the transcript and what the tools did.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from hobnob import crashpoints
from hobnob.sessions import InboundMessage
from hobnob.store import entries, sessions
from hobnob.testing import OWNER, calls, rehearse, script
from hobnob.tools import Context, Tool, tool

SETTINGS = script(calls("stamp", "First."), calls("peek", "Second."), "Finished.")


def tools_in(home: Path) -> list[Tool]:
    def done(name: str) -> None:
        with (home / "effects").open("a") as file:
            file.write(f"{name}\n")

    @tool()
    async def stamp(context: Context) -> str:
        """Has an effect that must not happen twice."""
        done("stamp")
        return "stamped"

    @tool(repeatable=True)
    async def peek(context: Context) -> str:
        """May be called again."""
        done("peek")
        return "peeked"

    return [stamp, peek]


async def live(home: Path) -> None:
    """Send with an idempotency key, as a client that tries again would, and wait for the end."""
    async with rehearse(home, SETTINGS, tools=tools_in(home)) as gateway:
        turn = await gateway.sessions.send(OWNER, "main", InboundMessage("go", idempotency_key="k"))
        (home / "accepted").write_text(turn.turn_id)
        ended = await gateway.sessions.wait(turn.turn_id, 60)
        session = await gateway.store.read(sessions.get, "agent:main:main")
        kept = await gateway.store.read(entries.history, session.session_id)
        report = {
            "turn_id": ended.turn_id,
            "outcome": ended.outcome,
            "reply": ended.reply,
            "error": ended.error,
            "seqs": [e.seq for e in kept],
            "messages": [e.message for e in kept],
            "status": session.status,
        }
        (home / "report").write_text(json.dumps(report))


def in_child(home: Path, at: str | None) -> bool:
    """Live in a child process. True when it was killed."""
    pid = os.fork()
    if pid == 0:
        crashpoints.armed = at
        asyncio.run(live(home))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def run_case(home: Path, deaths: list[str]) -> None:
    home.mkdir(parents=True)
    killed = [in_child(home, at) for at in deaths]
    accepted = (home / "accepted").read_text() if (home / "accepted").exists() else None
    in_child(home, None)
    effects = (home / "effects").read_text().split() if (home / "effects").exists() else []
    report = json.loads((home / "report").read_text())
    result = {"killed": killed, "accepted": accepted, "effects": effects, **report}
    (home / "result").write_text(json.dumps(result))
    print(home.name, flush=True)  # noqa: T201 - the test reads it


def main(base: Path) -> None:
    for point in crashpoints.TURN_POINTS:
        for visit in (1, 2, 3):
            run_case(base / f"{point}:{visit}", [f"{point}:{visit}"])
        run_case(base / f"{point} twice", [point, point])


main(Path(sys.argv[1]))
