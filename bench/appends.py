"""Durable 1 KB appends with 64 producers, against a bare `sqlite3` loop that commits in groups of 64.

The floor fills the same table, with its index on transcript and number: without that nobody could read a
transcript. What a table without the index would take is shown beside it.
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
        ours.append(asyncio.run(_store()))
    value, loosest, fair = statistics.median(ours), statistics.median(bare), statistics.median(indexed)
    ratio = value / fair
    note = f"{fair:,.0f}/s (without the index: {loosest:,.0f}/s)"
    return [
        Figure("durable 1 KB appends, 64 producers", f"{value:,.0f}/s", note, ratio, "≥ 0.40", ratio >= 0.4)
    ]


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
