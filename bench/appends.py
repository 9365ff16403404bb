"""Durable 1 KB appends with 64 producers, against a bare `sqlite3` loop that commits in groups of 64.

The budget is meant against the bare loop, into a table without an index. The second row is against the same
table as ours, with its index on transcript and number, without which nobody could read a transcript.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

import orjson
import uvloop

from bench import Figure
from hobnob.keys import parse
from hobnob.store import entries, open_store, sessions
from hobnob.types import Session, new_id

PRODUCERS = 64
EACH = 400
ROUNDS = 5
MESSAGE = {"role": "user", "content": "x" * 980}


def run() -> list[Figure]:
    """Floor and store take turns, so that both meet the same noise."""
    bare, indexed, ours = [], [], []
    for _ in range(ROUNDS):
        bare.append(_floor(indexed=False))
        indexed.append(_floor(indexed=True))
        ours.append(uvloop.run(_store()))
    value, loosest, fair = statistics.median(ours), statistics.median(bare), statistics.median(indexed)
    return [
        _figure("durable 1 KB appends, 64 producers", value, loosest, "a bare loop"),
        _figure("the same against the table with its index", value, fair, "a bare loop with the index"),
    ]


def _figure(name: str, value: float, floor: float, what: str) -> Figure:
    ratio = value / floor
    return Figure(name, f"{value:,.0f}/s", f"{floor:,.0f}/s, {what}", ratio, "≥ 0.40", ratio >= 0.4)


def _floor(*, indexed: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(Path(folder) / "floor.db", isolation_level=None)
        with contextlib.closing(connection):
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
            unique = ", unique (session_id, seq)" if indexed else ""
            connection.execute(
                "create table entries (position integer primary key autoincrement, session_id text,"
                f" seq integer, role text, turn_id text, body text, created_at_ms integer{unique})"
            )
            ids = [new_id() for _ in range(PRODUCERS)]
            body = orjson.dumps(MESSAGE).decode()
            columns = "session_id, seq, role, turn_id, body, created_at_ms"
            insert = f"insert into entries ({columns}) values (?, ?, ?, ?, ?, ?)"
            start = time.perf_counter()
            for seq in range(EACH):
                connection.execute("begin immediate")
                for session_id in ids:
                    connection.execute(insert, (session_id, seq, "user", None, body, seq))
                connection.execute("commit")
            return PRODUCERS * EACH / (time.perf_counter() - start)


async def _store() -> float:
    with tempfile.TemporaryDirectory() as folder:
        async with open_store(f"sqlite:///{folder}/hobnob.db") as store:
            made = [
                await store.write(sessions.create, Session.of(parse(f"hook:{i}"))) for i in range(PRODUCERS)
            ]

            async def produce(session: Session) -> None:
                for _ in range(EACH):
                    await store.write(entries.append, session.session_id, MESSAGE)

            start = time.perf_counter()
            await asyncio.gather(*(produce(session) for session in made))
            return PRODUCERS * EACH / (time.perf_counter() - start)
