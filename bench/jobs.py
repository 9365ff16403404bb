"""Scheduled jobs: finding what is due among many, and starting many in the same second."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
import uvloop

from bench import Figure
from hobnob import config
from hobnob.events import Change, TurnChanged
from hobnob.gateway import open_gateway
from hobnob.jobs.scheduler import Scheduler
from hobnob.schedule import runs
from hobnob.store import Tx, jobs, open_store
from hobnob.types import Job, now_ms

FEW, MANY, AT_ONCE = 100, 10_000, 1_000
ROUNDS = 200
HOUR_MS = 3_600_000


def run() -> list[Figure]:
    few, many = uvloop.run(_finding(FEW)), uvloop.run(_finding(MANY))
    accepted, again = uvloop.run(_starting())
    delay = uvloop.run(_first_call())
    ratio = many / few
    return [
        Figure(
            f"find the due job of {MANY:,}",
            f"{many * 1e3:.3f} ms",
            f"{few * 1e3:.3f} ms, of {FEW}",
            ratio,
            "< 1 ms, ≤ 1.5",
            many < 1e-3 and ratio <= 1.5,
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
            "from the due time to the start of the turn",
            f"{delay:.0f} ms",
            "-",
            delay / 300,
            "< 300 ms",
            delay < 300,
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


async def _finding(count: int) -> float:
    """The median time to find one due job and the next time."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_store(f"sqlite:///{folder}/hobnob.db") as store:
            at = now_ms()
            await store.write(_create, [_job(n, at + (n * HOUR_MS if n else -1)) for n in range(count)])
            times = []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                found = await store.read_small(jobs.due, at, limit=25)
                await store.read_small(jobs.next_at)
                times.append(time.perf_counter() - start)
                assert len(found) == 1
            return sorted(times)[ROUNDS // 2]


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


async def _first_call() -> float:
    """Milliseconds from the due time of a job to the start of its turn, in a gateway that is idle."""
    with tempfile.TemporaryDirectory() as folder:
        loaded = config.load(None, env={"HOBNOB_HOME": folder})
        async with open_gateway(loaded, env={}) as gateway:
            running = asyncio.Event()
            begun: list[int] = []

            def on_changes(changes: list[Change]) -> None:
                for change in changes:
                    if isinstance(change, TurnChanged) and change.turn.step == runs.STEP:
                        if change.turn.status == "running":
                            begun.append(now_ms())
                            running.set()

            gateway.store.watch(on_changes)
            due = now_ms() + 1_500
            await gateway.store.write(_create, [_job(0, due)])
            async with asyncio.timeout(60):
                await running.wait()
            return begun[0] - due
