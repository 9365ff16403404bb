"""Memory under mixed load: new sessions, turns, exchanges, spawns, lists, and subscribers that come and go.

The load has a fixed pace, so that runs on different machines do the same work. Memory must be flat in the
second half: what grows with the number of sessions is on disk, and what is cached has a bound.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from bench import Figure
from bench._gateways import TOKEN, gateway, rss_mb
from hobnob.client import Client, open_client
from hobnob.types import new_id

MINUTES = 15.0
BUDGET = 1.05  # memory at the end against memory after half the time
SAMPLES = 180  # over the whole run
SHOWN = 30  # lines of the progress report
TURNS_PER_SESSION = 4
SETTINGS: dict[str, Any] = {
    "agents": {
        "list": [{"id": "ann", "default": True}, {"id": "bob"}],
        "defaults": {"subagents": {"maxChildrenPerAgent": 20, "archiveAfterMinutes": 1}},
    },
    "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
}
Work = Callable[["_Load"], Awaitable[None]]


def run(minutes: float = MINUTES) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, gateway(Path(folder), SETTINGS) as (url, pid):
        idle = rss_mb(pid)
        load = uvloop.run(_soak(url, pid, minutes * 60))
        size_mb = sum(file.stat().st_size for file in Path(folder).glob("hobnob.db*")) / 1e6
    print(f"done: {load.summary}; {size_mb:.0f} MB of database files", file=sys.stderr)
    half, end = load.memory(0.45, 0.55), load.memory(0.9, 1.0)
    return [
        Figure(
            f"memory after {minutes:g} minutes of mixed load",
            f"{end:.0f} MB",
            f"{half:.0f} MB after half the time, {idle:.0f} MB idle",
            end / half,
            f"≤ {BUDGET:.2f}",
            end <= BUDGET * half,
        )
    ]


class _Load:
    """What the workers share: connections, counts of what was done, and samples of memory."""

    def __init__(self, client: Client, web: aiohttp.ClientSession, url: str) -> None:
        self.client = client
        self.web = web
        self.url = url
        self.done: Counter[str] = Counter()
        self.samples: list[tuple[float, float]] = []  # part of the run that is over, memory in MB

    async def turn(self, session: str, text: str) -> None:
        answer = await self.client.call(
            "agent", message=text, sessionKey=session, idempotencyKey=new_id(), timeout=60
        )
        assert answer["status"] == "ok", answer
        self.done["turns"] += 1

    async def new_session(self, agent: str) -> str:
        key = f"agent:{agent}:hook:{new_id()}"
        await self.client.call("sessions.create", key=key)
        self.done["sessions"] += 1
        return key

    def memory(self, first: float, last: float) -> float:
        """The median of the samples in a part of the run."""
        return statistics.median(mb for at, mb in self.samples if first <= at <= last)

    @property
    def summary(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in sorted(self.done.items()))


async def _soak(url: str, pid: int, seconds: float) -> _Load:
    async with open_client(url, TOKEN) as client, aiohttp.ClientSession() as web:
        load = _Load(client, web, url)
        start = time.monotonic()
        pace: list[tuple[Work, float]] = [
            (_talk, 0.3),
            (_talk, 0.3),
            (_exchange, 0.4),
            (_exchange, 0.4),
            (_spawn, 0.8),
            (_read, 0.5),
            (_subscribe, 0.5),
            (_stream, 0.5),
        ]
        workers = [asyncio.create_task(_repeat(work, load, every_s)) for work, every_s in pace]
        try:
            for number in range(1, SAMPLES + 1):
                await asyncio.sleep(max(0.0, start + seconds * number / SAMPLES - time.monotonic()))
                load.samples.append((number / SAMPLES, rss_mb(pid)))
                if number % (SAMPLES // SHOWN) == 0:
                    passed = (time.monotonic() - start) / 60
                    print(f"  {passed:5.1f} min  {rss_mb(pid):6.1f} MB  {load.summary}", file=sys.stderr)
                if failed := [task for task in workers if task.done()]:
                    failed[0].result()
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return load


async def _repeat(work: Work, load: _Load, every_s: float) -> None:
    """Repeat at a fixed pace; after a delay of the machine, without catching up."""
    while True:
        next_at = time.monotonic() + every_s
        await work(load)
        await asyncio.sleep(max(0.0, next_at - time.monotonic()))


async def _talk(load: _Load) -> None:
    """A new session with some turns, and a look at its history."""
    key = await load.new_session("ann")
    for number in range(TURNS_PER_SESSION):
        await load.turn(key, f"{number}: " + "some words of a message " * 20)
    await load.client.call("chat.history", sessionKey=key, limit=50)


async def _exchange(load: _Load) -> None:
    """An agent asks another one in a new session; reply and announce steps follow by themselves."""
    requester, target = await load.new_session("ann"), await load.new_session("bob")
    await load.turn(requester, f"ask {target}: say: {'an answer ' * 20}")
    load.done["exchanges"] += 1


async def _spawn(load: _Load) -> None:
    requester = await load.new_session("ann")
    await load.client.call("sessions.spawn", key=requester, task="say: done", idempotencyKey=new_id())
    load.done["spawns"] += 1


async def _read(load: _Load) -> None:
    """Lists, search, exchanges and costs, as the page and the command line ask for them."""
    call = load.client.call
    page = await call("sessions.list", limit=100, messageLimit=3, includeStanding=True)
    await call("sessions.preview", keys=["main", *(row["key"] for row in page["sessions"][:20])])
    await call("sessions.search", query="words message")
    await call("exchanges.timeline", limit=50)
    await call("sessions.usage")
    load.done["reads"] += 5


async def _subscribe(load: _Load) -> None:
    """A client that follows a session and all changes, and leaves in the middle of them."""
    key = await load.new_session("bob")
    async with open_client(load.url, TOKEN) as client:
        await client.call("sessions.subscribe")
        await client.call("sessions.messages.subscribe", key=key)
        await load.turn(key, "say: " + "one two three " * 20)
        for _ in range(3):
            await client.events.get()
    load.done["subscribers"] += 1


_streamed: Iterator[int] = itertools.count()


async def _stream(load: _Load) -> None:
    """An event stream whose client leaves after the first event."""
    key = f"agent:bob:hook:streamed-{next(_streamed) % 20}"
    await load.turn(key, "say: " + "one two three " * 20)
    url = load.url.replace("ws://", "http://") + f"/sessions/{key}/history?follow=1&limit=5"
    async with load.web.get(url, headers={"Authorization": f"Bearer {TOKEN}"}) as response:
        assert response.status == 200, await response.text()
        await response.content.readline()
    load.done["streams"] += 1
