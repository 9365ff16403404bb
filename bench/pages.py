"""Session pages, the end of a long history and opening a store, with 1,000,000 sessions against 1,000."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench import Figure, median_s
from hobnob.keys import parse
from hobnob.store import Tx, entries, open_store, sessions
from hobnob.store.engine.sqlite import SqliteTx
from hobnob.store.engine.sqlite_file import connect
from hobnob.types import Session

Work = Callable[[Tx, str], list[Any]]
SMALL, LARGE = 1_000, 1_000_000
MESSAGES = 10_000
CHUNK = 5_000
KEYS = [f"agent:a{{a}}:{rest}:{{i}}" for rest in ("hook", "cron", "telegram:group", "subagent")]


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.db", Path(folder) / "large.db"
        long_session = {
            path: asyncio.run(_build(path, count)) for path, count in ((small, SMALL), (large, LARGE))
        }
        figures = []
        for name, verb in _verbs().items():
            floor, value = _verb_s(verb, [(path, long_session[path]) for path in (small, large)])
            ok = value / floor <= 1.3 and value < 0.002
            figures.append(
                Figure(
                    f"{name}, 1,000,000 sessions",
                    f"{value * 1000:.2f} ms",
                    f"{floor * 1000:.2f} ms at 1,000",
                    value / floor,
                    "≤ 1.30 and < 2 ms",
                    ok,
                )
            )
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


def _verbs() -> dict[str, Work]:
    middle = (500, "")
    return {
        "page of 100 sessions": lambda tx, _: sessions.page(tx),
        "page of 100 sessions from the middle": lambda tx, _: sessions.page(tx, after=middle),
        "page of 100 sessions of one agent": lambda tx, _: sessions.page(tx, agent_id="a3"),
        "page of 100 sessions of two kinds": lambda tx, _: sessions.page(tx, kinds=["cron", "group"]),
        "last 50 of 10,000 messages": lambda tx, session_id: entries.history(tx, session_id, limit=50),
    }


def _verb_s(work: Work, stores: list[tuple[Path, str]]) -> list[float]:
    """The median time in each store; stores alternate, so that noise of the machine affects all."""
    with contextlib.ExitStack() as stack:
        ready = []
        for path, session_id in stores:
            connection = stack.enter_context(contextlib.closing(connect(path, read_only=True)))
            ready.append((SqliteTx(connection), session_id))
            assert len(work(*ready[-1])) in (50, 100)
        medians: list[list[float]] = [[] for _ in stores]
        for _ in range(10):
            for i, (tx, session_id) in enumerate(ready):
                medians[i].append(median_s(partial(work, tx, session_id), 30))
        return [statistics.median(times) for times in medians]


async def _build(path: Path, count: int) -> str:
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
        session = await store.write(sessions.create, Session.of(parse("agent:a0:main"), updated_at_ms=0))
        await store.write(append_messages, session.session_id)
        return session.session_id


async def _open_s(path: Path) -> float:
    """The time to open a store and read one row."""
    start = time.perf_counter()
    async with open_store(f"sqlite:///{path}") as store:
        await store.read(sessions.page, limit=1)
        return time.perf_counter() - start
