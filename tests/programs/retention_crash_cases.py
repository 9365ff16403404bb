"""Kills a process in the middle of a clean-up and starts another one, for each of its steps.

Prints the name of each case when it is done. The file `result` in its folder says whether the process was
killed, what is left in the tables, and what was spent.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from hobnob import crashpoints, retention
from hobnob.keys import parse
from hobnob.sessions import InboundMessage
from hobnob.store import Tx, entries, index_words, purge_entries, sessions
from hobnob.store.costs import usage as usage_rows
from hobnob.testing import OWNER, rehearse
from hobnob.types import Session, Usage, now_ms

VISITS = 8
WORDS = "entry_words" if os.environ.get("HOBNOB_TEST_STORE") == "postgres" else "entry_words_docsize"
TABLES = f"sessions transcripts entries {WORDS} turns exchanges usage idempotency_keys purges"
LATER_MS = 400 * 24 * 3_600_000


def fill(tx: Tx) -> None:
    for number in range(3):
        key = parse(f"agent:main:hook:{number}")
        session = sessions.create(tx, Session.of(key, created_at_ms=1, updated_at_ms=1))
        for _ in range(150):
            entries.append(tx, session.session_id, {"role": "user", "content": "some words"})
        for day in range(1, 6):
            call = Usage(
                day=f"2026-01-0{day}", agent_id="main", session_key=session.key, model="p/m", calls=1
            )
            usage_rows.add(tx, call)
        usage_rows.add(
            tx, Usage(day="2026-01-09", agent_id="main", session_key=f"k{number}", model="p/m", cost_usd=4.0)
        )
    last = Usage(day="2026-01-09", agent_id="main", session_key="k", model="p/m", cost_usd=0.5)
    usage_rows.add(tx, last)


async def prepare(home: Path) -> None:
    async with rehearse(home) as gateway:
        for number in range(4):
            message = InboundMessage("say hi", idempotency_key=f"key {number}")
            turn = await gateway.sessions.send(OWNER, "main", message)
            await gateway.sessions.wait(turn.turn_id, 60)
        await gateway.store.write(fill)


async def clean_up(home: Path) -> None:
    retention.BATCH = 4  # more steps, so more places to be killed at
    async with rehearse(home) as gateway:
        await gateway.retention.clean_up(at_ms=now_ms() + LATER_MS)
        await purge_entries(gateway.store)
        await index_words(gateway.store)

        def report(tx: Tx) -> dict[str, object]:
            left = {table: _count(tx, table) for table in TABLES.split()}
            total, _ = usage_rows.spent(tx, "2026-01-01", "2026-01-31")
            return {"left": left, "cost": total.cost_usd if total else None}

        (home / "report").write_text(json.dumps(await gateway.store.read(report)))


def _count(tx: Any, table: str) -> int:
    statement = f"select count(*) from {table}"
    if tx.__class__.__name__ == "PostgresTx":
        from hobnob.store.engine.postgres_sql import Query

        return int(tx._execute(Query(statement.encode(), ()), ()).fetchone()[0])
    return int(tx._execute(statement).fetchone()[0])


def in_child(home: Path, at: str | None) -> bool:
    """Clean up in a child process. True when it was killed."""
    pid = os.fork()
    if pid == 0:
        crashpoints.armed = at
        asyncio.run(clean_up(home))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def run_case(home: Path, at: str | None) -> None:
    home.mkdir(parents=True)
    asyncio.run(prepare(home))
    killed = in_child(home, at)
    if killed:
        in_child(home, None)
    (home / "result").write_text(json.dumps({"killed": killed, **json.loads((home / "report").read_text())}))
    print(home.name, flush=True)  # noqa: T201 - the test reads it


def main(base: Path) -> None:
    run_case(base / "whole", None)
    for visit in range(1, VISITS + 1):
        run_case(base / f"after-removal:{visit}", f"after-removal:{visit}")


main(Path(sys.argv[1]))
