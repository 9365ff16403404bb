"""Several gateways on one PostgreSQL, which writes to the disk as in earnest. The floor is SQLite.

The server is started for the run, as the tests do it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
from tests import postgres
from tests.cluster.harness import Link

from bench import Figure
from bench._gateways import TOKEN, gateway
from bench._model_server import model_server
from hobnob.client import Client, open_client
from hobnob.types import new_id

SESSIONS = 16
TURNS, ROUNDS = 800, 3  # the median of the rounds is the figure
WARM_UP = 3  # turns of each session before it is measured: the first one of a gateway loads the model client
PACED_TURNS, PACE_S = 500, 0.02
KILLS = 3
STREAMS = 3


def run() -> list[Figure]:
    with model_server() as model, contextlib.closing(_Database()) as database:
        with _gateways(model, [f"sqlite:///{tempfile.mkdtemp()}/hobnob.db"]) as [(url, _)]:
            floor = uvloop.run(_rate(url))
        with _gateways(model, [database.url("one")]) as [(url, _)]:
            rate = uvloop.run(_rate(url))
        with _gateways(model, [database.url("paced")]) as [(url, _)]:
            uvloop.run(_paced(url))
        half, most = database.starts("paced")
        killed = [_taken_over(model, database, f"kill{n}", signal.SIGKILL) for n in range(KILLS)]
        stopped = _taken_over(model, database, "stop", signal.SIGTERM)
        hung = _taken_over(model, database, "hang", signal.SIGSTOP)
        cut = _taken_over(model, database, "cut", None)
        with _gateways(model, [database.url("stream")] * 2) as [(here, _), (there, _)]:
            late = uvloop.run(_delta_delay(here, there))
    no_floor = "(none)"
    return [
        Figure(
            "turns on PostgreSQL, 16 sessions in parallel",
            f"{rate:,.0f}/s",
            f"{floor:,.0f}/s, on SQLite",
            rate / floor,
            "≥ 200/s",
            rate >= 200,
        ),
        Figure("start of a turn after accept, p50", f"{half} ms", no_floor, half / 10, "≤ 10 ms", half <= 10),
        Figure("the same, p99", f"{most} ms", no_floor, most / 50, "≤ 50 ms", most <= 50),
        Figure(
            "a killed gateway's turn runs elsewhere",
            f"{max(killed):.2f} s",
            f"{statistics.median(killed):.2f} s, the median of {KILLS}",
            max(killed),
            "≤ 1 s",
            max(killed) <= 1,
        ),
        Figure("the same after SIGTERM", f"{stopped:.2f} s", no_floor, stopped, "≤ 1 s", stopped <= 1),
        Figure("the same after a hang", f"{hung:.1f} s", no_floor, hung / 10, "≤ 10 s", hung <= 10),
        Figure("the same after a cut", f"{cut:.1f} s", no_floor, cut / 10, "≤ 10 s", cut <= 10),
        Figure(
            "text streamed by another gateway, p95 later",
            f"{late:.0f} ms",
            no_floor,
            late / 80,
            "≤ 80 ms",
            late <= 80,
        ),
    ]


class _Database:
    def __init__(self) -> None:
        self._server = postgres.start_server(durable=True)

    def url(self, name: str) -> str:
        with contextlib.suppress(Exception):  # it exists already
            self._server.execute(f"create database {name}")
        return self._server.url(name)

    def link(self) -> Link:
        """A way to the database that can be cut."""
        return Link(self._server)

    def claim(self, name: str) -> int:
        rows = postgres.execute(
            self._server.url(name), "select max(claim) from turns where status = 'running'"
        )
        return rows[0][0] or 0

    def starts(self, name: str) -> tuple[int, int]:
        query = (
            "select percentile_disc(array[0.5, 0.99]) within group (order by started_at_ms - accepted_at_ms)"
            f" from (select * from turns order by accepted_at_ms offset {WARM_UP * SESSIONS}) t"
        )
        half, most = postgres.execute(self._server.url(name), query)[0][0]
        return half, most

    def close(self) -> None:
        self._server.stop()


@contextlib.contextmanager
def _gateways(model: str, stores: list[str]) -> Iterator[list[tuple[str, int]]]:
    """A gateway for each store. Yields the URL and the process id of each."""
    providers = {
        name: {"baseUrl": f"{model}/{name}", "models": [{"id": "m"}], "maxConcurrent": 64}
        for name in ("short", "slow", "paced")
    }
    settings: dict[str, Any] = {
        "agents": {"defaults": {"model": "short/m", "maxConcurrent": 64}},
        "models": {"providers": providers},
    }
    with contextlib.ExitStack() as stack:
        started = []
        for store in stores:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            started.append(stack.enter_context(gateway(home, settings | {"store": {"url": store}})))
        yield started


async def _turn(client: Client, session: str) -> None:
    answer = await client.call("agent", message="Hi", sessionKey=session, idempotencyKey=new_id())
    assert answer["status"] == "ok", answer


async def _rate(url: str) -> float:
    async with open_client(url, TOKEN) as client:
        await _in_parallel(client, WARM_UP)
        rates = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await _in_parallel(client, TURNS // SESSIONS)
            rates.append(TURNS / (time.perf_counter() - began))
        return statistics.median(rates)


async def _in_parallel(client: Client, turns: int) -> None:
    async def one_after_another(session: str) -> None:
        for _ in range(turns):
            await _turn(client, session)

    await asyncio.gather(*(one_after_another(f"s{n}") for n in range(SESSIONS)))


async def _paced(url: str) -> None:
    """Turns at a steady pace, each in one of a few sessions."""
    async with open_client(url, TOKEN) as client, asyncio.TaskGroup() as group:
        await _in_parallel(client, WARM_UP)
        for number in range(PACED_TURNS):
            group.create_task(_turn(client, f"s{number % SESSIONS}"))
            await asyncio.sleep(PACE_S)


def _taken_over(model: str, database: _Database, name: str, how: signal.Signals | None) -> float:
    """How long after its gateway got a signal, or was cut off (None), a turn is claimed by another one."""
    url = database.url(name)
    with (
        contextlib.closing(database.link()) as link,
        _gateways(model, [link.url(name), url]) as [(here, pid), _],
    ):
        asyncio.run(_begin_slow(here))
        began = time.perf_counter()
        if how is None:
            link.cut()
        else:
            os.kill(pid, how)
        while database.claim(name) < 2:
            time.sleep(0.01)
        return time.perf_counter() - began


async def _begin_slow(url: str) -> None:
    async with open_client(url, TOKEN) as client:
        await client.call("sessions.create", key="slow", model="slow/m")
        began = await client.call("chat.send", sessionKey="slow", message="Hi", idempotencyKey=new_id())
        assert began["status"] == "started", began
        await asyncio.sleep(1)


async def _delta_delay(here: str, there: str) -> float:
    """How much later a client of another gateway has streamed text, in ms at the 95th percentile."""
    async with open_client(here, TOKEN) as near, open_client(there, TOKEN) as far:
        await near.call("sessions.create", key="stream", model="paced/m")
        arrivals = [_Arrivals(client) for client in (near, far)]
        for each in arrivals:
            await each.client.call("sessions.messages.subscribe", key="stream")
        await asyncio.sleep(1)
        for _ in range(STREAMS):
            await near.call("agent", message="Hi", sessionKey="stream", idempotencyKey=new_id())
            await asyncio.sleep(1)
        for each in arrivals:
            each.task.cancel()
        first, second = (each.seen for each in arrivals)
        delays = []
        for length, at in second:
            known = next(seen_at for seen_length, seen_at in first if seen_length >= length)
            delays.append(1000 * (at - known))
        return sorted(delays)[int(len(delays) * 0.95)]


class _Arrivals:
    """When a client had how much of the streamed text."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.seen: list[tuple[int, float]] = []
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        length = 0
        while (event := await self.client.events.get()) is not None:
            payload = event.get("payload") or {}
            if event.get("event") == "agent" and payload.get("stream") == "assistant":
                length += len(payload["data"].get("delta") or "")
                self.seen.append((length, time.perf_counter()))
