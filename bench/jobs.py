"""Scheduled jobs: finding what is due among many, and starting many in the same second."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import uvloop

from bench import Figure
from bench._model_server import model_server
from hobnob import config
from hobnob.gateway import open_gateway
from hobnob.jobs.scheduler import Scheduler
from hobnob.store import Store, Tx, jobs, open_store
from hobnob.store.engine import statements
from hobnob.types import Job, now_ms

FEW, MANY, AT_ONCE, STARTS = 100, 10_000, 1_000, 5
ROUNDS, REPEATS = 400, 20
HOUR_MS = 3_600_000


def run() -> list[Figure]:
    few, many, plan = uvloop.run(_finding())
    accepted, again = uvloop.run(_starting())
    with model_server() as model:
        delays = uvloop.run(_first_calls(model))
    ratio, worst = many / few, max(delays)
    return [
        Figure(
            f"find the due job of {MANY:,}; {plan}",
            f"{many * 1e3:.3f} ms",
            f"{few * 1e3:.3f} ms, of {FEW}",
            ratio,
            "< 1 ms, ≤ 1.1",
            many < 1e-3 and ratio <= 1.1 and "USING INDEX jobs_due" in plan,
        ),
        Figure(
            f"accept {AT_ONCE:,} jobs due in one second",
            f"{accepted:.2f} s, {again} twice",
            "-",
            accepted / 3,
            "< 3 s, none twice",
            accepted < 3 and again == 0,
        ),
        Figure(
            f"from the due time to the request at the model, slowest of {STARTS}",
            f"{worst:.0f} ms",
            f"{statistics.median(delays):.0f} ms, median",
            worst / 300,
            "< 300 ms",
            worst < 300,
        ),
    ]


def _job(number: int, next_at: int, **more: Any) -> Job:
    return Job(
        job_id=f"job-{number:06}",
        agent_id="main",
        name=f"Job {number}",
        schedule=orjson.dumps({"kind": "cron", "expr": "0 8 * * *", "tz": "Europe/Vienna"}).decode(),
        payload='{"kind":"agentTurn","message":"say done"}',
        delivery='{"mode":"none"}',
        target="isolated",
        next_run_at_ms=next_at,
        **more,
    )


def _create(tx: Tx, made: list[Job]) -> None:
    for job in made:
        jobs.create(tx, job)


async def _finding() -> tuple[float, float, str]:
    """The median times to find one due job and the next time among few and many, and the query plan."""
    with tempfile.TemporaryDirectory() as few_folder, tempfile.TemporaryDirectory() as many_folder:
        async with (
            open_store(f"sqlite:///{few_folder}/hobnob.db") as few,
            open_store(f"sqlite:///{many_folder}/hobnob.db") as many,
        ):
            at = now_ms()
            for store, count in ((few, FEW), (many, MANY)):
                made = [_job(n, at + (n * HOUR_MS if n else -1)) for n in range(count)]
                await store.write(_create, made)
            times: dict[Store, list[float]] = {few: [], many: []}
            for number in range(ROUNDS):  # by turns, so that a busy machine slows both
                for store in (few, many) if number % 2 else (many, few):
                    times[store].append(await _time_to_find(store, at))
            plan = _plan(Path(many_folder) / "hobnob.db")
            return statistics.median(times[few]), statistics.median(times[many]), plan


async def _time_to_find(store: Store, at: int) -> float:
    start = time.perf_counter()
    for _ in range(REPEATS):
        found = await store.read_small(jobs.due, at, limit=25)
        await store.read_small(jobs.next_at)
        await asyncio.sleep(0)  # else reads beyond the budget of an iteration go to a thread
    took = time.perf_counter() - start
    assert len(found) == 1
    return took / REPEATS


def _plan(path: Path) -> str:
    """How SQLite finds the due jobs."""
    with closing(sqlite3.connect(path)) as connection:
        sql = statements.load()["jobs_due"]
        rows = connection.execute(f"explain query plan {sql}", {"now_ms": now_ms(), "limit": 25})
        return "; ".join(row[3] for row in rows)


async def _starting() -> tuple[float, int]:
    """Seconds until all turns are accepted, and how many jobs have more than one run."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        loaded = config.load(None, env={"HOBNOB_HOME": str(home)})
        async with open_gateway(loaded, env={}, working=False) as gateway:
            at = now_ms()
            for first in range(0, MANY, 500):
                made = [_job(n, at if n < AT_ONCE else at + HOUR_MS) for n in range(first, first + 500)]
                await gateway.store.write(_create, made)
            scheduler: Scheduler = gateway.scheduler
            start = time.perf_counter()
            started = await scheduler.run_once(at)
            took = time.perf_counter() - start
            assert started == AT_ONCE and await scheduler.run_once(at) == 0
            history = await gateway.store.read(jobs.runs, limit=2 * AT_ONCE)
            return took, len(history) - len({each.job_id for each in history})


async def _first_calls(model: str) -> list[float]:
    """Milliseconds from the due time of a job to its request at a model server, in an idle gateway."""
    arrivals: asyncio.Queue[float] = asyncio.Queue()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass requests on to the model server; note when the first byte of each arrives."""
        port = int(model.rsplit(":", 1)[1])
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", port)

        async def back() -> None:
            while data := await upstream_reader.read(65_536):
                writer.write(data)

        answering = asyncio.ensure_future(back())
        while data := await reader.read(65_536):
            if data.startswith(b"POST "):
                arrivals.put_nowait(time.time() * 1000)
            upstream.write(data)
        upstream.close()
        await answering

    with tempfile.TemporaryDirectory() as folder:
        async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/short"
            provider = {"baseUrl": url, "apiKey": "-", "api": "openai-completions", "models": [{"id": "m"}]}
            settings = {
                "agents": {"defaults": {"model": "p/m"}},
                "models": {"providers": {"p": provider}},
            }
            file = Path(folder) / "hobnob.json5"
            file.write_bytes(orjson.dumps(settings))
            loaded = config.load(file, env={"HOBNOB_HOME": folder})
            async with open_gateway(loaded, env={}, grace_s=0) as gateway:
                delays = []
                for number in range(STARTS):
                    due = (now_ms() // 1000 + 2) * 1000  # a full second
                    await gateway.store.write(_create, [_job(number, due)])
                    async with asyncio.timeout(60):
                        delays.append(await arrivals.get() - due)
                return delays
