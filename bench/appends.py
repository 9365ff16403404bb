"""Durable 1 KB appends with 64 producers, against a bare `sqlite3` loop that commits in groups of 64.

The first figure compares with a table without an index. The second compares with the table the store uses,
which has an index on session id and sequence number.
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
PER_PRODUCER = 400
ROUNDS = 5
MESSAGE = {"role": "user", "content": "x" * 980}


def run() -> list[Figure]:
    """Floors and store alternate, so that noise of the machine affects all of them."""
    bare, indexed, ours = [], [], []
    for _ in range(ROUNDS):
        bare.append(_floor(indexed=False))
        indexed.append(_floor(indexed=True))
        ours.append(uvloop.run(_store()))
    value = statistics.median(ours)
    return [
        _figure("durable 1 KB appends, 64 producers", value, statistics.median(bare), "a bare loop"),
        _figure(
            "the same against a table with the index",
            value,
            statistics.median(indexed),
            "a bare loop with the index",
        ),
    ]


def _figure(name: str, value: float, floor: float, floor_name: str) -> Figure:
    ratio = value / floor
    return Figure(name, f"{value:,.0f}/s", f"{floor:,.0f}/s, {floor_name}", ratio, "≥ 0.40", ratio >= 0.4)


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
            for seq in range(PER_PRODUCER):
                connection.execute("begin immediate")
                for session_id in ids:
                    connection.execute(insert, (session_id, seq, "user", None, body, seq))
                connection.execute("commit")
            return PRODUCERS * PER_PRODUCER / (time.perf_counter() - start)


async def _store() -> float:
    with tempfile.TemporaryDirectory() as folder:
        async with open_store(f"sqlite:///{folder}/hobnob.db") as store:
            created = [
                await store.write(sessions.create, Session.of(parse(f"hook:{i}"))) for i in range(PRODUCERS)
            ]

            async def produce(session: Session) -> None:
                for _ in range(PER_PRODUCER):
                    await store.write(entries.append, session.session_id, MESSAGE)

            start = time.perf_counter()
            await asyncio.gather(*(produce(session) for session in created))
            return PRODUCERS * PER_PRODUCER / (time.perf_counter() - start)
