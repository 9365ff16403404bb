"""Session pages, the end of a long history and opening a store, with 1,000,000 sessions against 1,000.

The same is read from PostgreSQL, from a copy of the large store, and compared with SQLite.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from tests import postgres

from bench import Figure, median_s
from hobnob.keys import parse
from hobnob.store import Tx, entries, open_store, sessions
from hobnob.store.engine import postgres_server
from hobnob.store.engine.copying import copy_store
from hobnob.store.engine.sqlite import SqliteTx
from hobnob.store.engine.sqlite_file import connect
from hobnob.store.engine.tx import Store
from hobnob.types import Session

Work = Callable[[Tx, str], list[Any]]
SMALL, LARGE = 1_000, 1_000_000
MESSAGES = 10_000
LONG_SESSION = "agent:a0:main"
CHUNK = 5_000
KEYS = [f"agent:a{{a}}:{rest}:{{i}}" for rest in ("hook", "cron", "telegram:group", "subagent")]


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, _database() as copied:
        small, large = Path(folder) / "small.db", Path(folder) / "large.db"
        for path, count in ((small, SMALL), (large, LARGE)):
            asyncio.run(_build(path, count))
        copy_store(f"sqlite:///{large}", copied)
        postgres.execute(copied, "vacuum analyze")
        figures = _page_figures(small, large) + uvloop.run(_postgres_figures(large, copied))
        floor, value = (asyncio.run(_open_s(path)) for path in (small, large))
        figures.append(
            Figure(
                "opening a store of 1,000,000 sessions",
                f"{value * 1000:.0f} ms",
                f"{floor * 1000:.0f} ms at 1,000",
                value / floor,
                "< 300 ms",
                value < 0.3,
            )
        )
        return figures


@contextlib.contextmanager
def _database() -> Iterator[str]:
    """The URL of an empty store on a PostgreSQL server of its own."""
    server = postgres.start_server(durable=True)
    try:
        server.execute("create database large")
        url = server.url("large")
        with contextlib.closing(postgres_server.connect(url)) as connection:
            postgres_server.migrate(url, connection)
        yield url
    finally:
        server.stop()


def _page_figures(small: Path, large: Path) -> list[Figure]:
    figures = []
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(contextlib.closing(connect(p, read_only=True))) for p in (small, large)]
        stores = [SqliteTx(file) for file in files]
        for name, verb in _verbs().items():
            floor, value = _verb_s(verb, stores)
            figures.append(
                Figure(
                    f"{name}, 1,000,000 sessions",
                    f"{value * 1000:.2f} ms",
                    f"{floor * 1000:.2f} ms at 1,000",
                    value / floor,
                    "≤ 1.30 and < 2 ms",
                    value / floor <= 1.3 and value < 0.002,
                )
            )
    return figures


def _verbs() -> dict[str, Work]:
    middle = (500, "")
    return {
        "page of 100 sessions": lambda tx, _: sessions.page(tx),
        "page of 100 sessions from the middle": lambda tx, _: sessions.page(tx, after=middle),
        "page of 100 sessions of one agent": lambda tx, _: sessions.page(tx, agent_id="a3"),
        "page of 100 sessions of two kinds": lambda tx, _: sessions.page(tx, kinds=["cron", "group"]),
        "last 50 of 10,000 messages": lambda tx, session_id: entries.history(tx, session_id, limit=50),
    }


def _verb_s(work: Work, stores: list[SqliteTx]) -> list[float]:
    """The median time in each store; stores alternate, so that noise of the machine affects all."""
    ready = []
    for tx in stores:
        ready.append(partial(work, tx, sessions.get(tx, LONG_SESSION).session_id))
        assert len(ready[-1]()) in (50, 100)
    medians: list[list[float]] = [[] for _ in stores]
    for _ in range(10):
        for i, read in enumerate(ready):
            medians[i].append(median_s(read, 30))
    return [statistics.median(times) for times in medians]


async def _postgres_figures(large: Path, copied: str) -> list[Figure]:
    """Reads as the gateway does them: in a transaction, by a thread of the store."""
    figures = []
    async with open_store(f"sqlite:///{large}") as on_file, open_store(copied) as on_server:
        session_id = (await on_file.read(sessions.get, LONG_SESSION)).session_id
        for name, verb in _verbs().items():
            medians: list[list[float]] = [[], []]
            for _ in range(10):
                for store, times in zip((on_file, on_server), medians, strict=True):
                    times.append(await _read_s(store, verb, session_id))
            floor, value = map(statistics.median, medians)
            figures.append(
                Figure(
                    f"{name}, on PostgreSQL",
                    f"{value * 1000:.2f} ms",
                    f"{floor * 1000:.2f} ms on SQLite",
                    value / floor,
                    "≤ 2.00",
                    value / floor <= 2,
                )
            )
    return figures


async def _read_s(store: Store, verb: Work, session_id: str) -> float:
    """The median time of a read."""
    times = []
    for _ in range(30):
        began = time.perf_counter()
        found = await store.read(verb, session_id)
        times.append(time.perf_counter() - began)
        assert len(found) in (50, 100)
    return statistics.median(times)


async def _build(path: Path, count: int) -> None:
    """`count` sessions of ten agents, last used at random times, and one with a long history."""
    rng = random.Random(7)  # noqa: S311 - a fixed seed makes the same store each time

    def create_sessions(tx: Tx, first: int) -> None:
        for i in range(first, first + min(CHUNK, count)):
            at = rng.randrange(1000)
            key = KEYS[i % len(KEYS)].format(a=i % 10, i=i)
            sessions.create(tx, Session.of(parse(key), created_at_ms=at, updated_at_ms=at))

    def append_messages(tx: Tx, session_id: str) -> None:
        for i in range(MESSAGES):
            entries.append(tx, session_id, {"role": "user", "content": f"message {i} " + "x" * 200})

    async with open_store(f"sqlite:///{path}") as store:
        for first in range(0, count, CHUNK):
            await store.write(create_sessions, first)
        session = await store.write(sessions.create, Session.of(parse(LONG_SESSION), updated_at_ms=0))
        await store.write(append_messages, session.session_id)


async def _open_s(path: Path) -> float:
    """The time to open a store and read one row."""
    start = time.perf_counter()
    async with open_store(f"sqlite:///{path}") as store:
        await store.read(sessions.page, limit=1)
        return time.perf_counter() - start
