"""Jobs in a real store over the changes of daylight saving in three zones, in accelerated time.

The jobs leave a note instead of a turn, so that a year of them takes seconds. The clock is an argument.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from hobnob import config
from hobnob.gateway import Gateway, open_gateway
from hobnob.store import jobs
from hobnob.testing import OWNER
from hobnob.types import JobRun

MINUTE, HOUR = 60_000, 3_600_000
CHANGES = [
    ("Europe/Vienna", date(2027, 3, 28)),
    ("Europe/Vienna", date(2027, 10, 31)),
    ("America/New_York", date(2027, 3, 14)),
    ("America/New_York", date(2027, 11, 7)),
    ("Australia/Lord_Howe", date(2027, 4, 4)),
    ("Australia/Lord_Howe", date(2027, 10, 3)),
]


@asynccontextmanager
async def idle_gateway(home: Path) -> AsyncIterator[Gateway]:
    """A gateway whose scheduler runs only when it is told to."""
    loaded = config.load(None, env={"HOBNOB_HOME": str(home)})
    async with open_gateway(loaded, env={}, working=False) as gateway:
        yield gateway


def local_ms(day: date, zone: str) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).timestamp() * 1000)


async def add(gateway: Gateway, expr: str, zone: str, at_ms: int) -> str:
    gateway.jobs.clock = lambda: at_ms
    spec = {
        "schedule": {"kind": "cron", "expr": expr, "tz": zone},
        "payload": {"kind": "systemEvent", "text": "It is time."},
        "wakeMode": "next-heartbeat",
    }
    return (await gateway.jobs.add(OWNER, spec)).job_id


async def runs(gateway: Gateway, job_id: str) -> list[JobRun]:
    return await gateway.store.read(jobs.runs, job_id, limit=1000)


@pytest.mark.promise("jobs.daylight_saving")
@pytest.mark.parametrize(("zone", "day"), CHANGES)
async def test_a_job_runs_once_on_each_day_around_a_change_of_the_clock(
    tmp_path: Path, zone: str, day: date
) -> None:
    start, end = local_ms(day - timedelta(days=2), zone), local_ms(day + timedelta(days=2), zone)
    async with idle_gateway(tmp_path) as gateway:
        nightly = await add(gateway, "30 2 * * *", zone, start)
        morning = await add(gateway, "0 8 * * *", zone, start)
        for at in range(start, end, 7 * MINUTE):
            await gateway.scheduler.run_once(at)
        for job_id in (nightly, morning):
            days = Counter(
                datetime.fromtimestamp(run.due_at_ms / 1000, ZoneInfo(zone)).date()
                for run in await runs(gateway, job_id)
            )
            assert days == {day + timedelta(days=n): 1 for n in (-2, -1, 0, 1)}


@pytest.mark.promise("jobs.daylight_saving")
@pytest.mark.parametrize(("zone", "day"), CHANGES)
async def test_an_interval_has_no_gap_and_no_repeat_on_the_day_of_a_change(
    tmp_path: Path, zone: str, day: date
) -> None:
    start, end = local_ms(day, zone), local_ms(day + timedelta(days=1), zone)
    async with idle_gateway(tmp_path) as gateway:
        job_id = await add(gateway, "*/30 * * * *", zone, start)
        for at in range(start, end, 10 * MINUTE):
            await gateway.scheduler.run_once(at)
        due = sorted(run.due_at_ms for run in await runs(gateway, job_id))
        assert due == list(range(start + 30 * MINUTE, end, 30 * MINUTE))


async def test_a_clock_that_goes_back_an_hour_every_day_repeats_no_run(tmp_path: Path) -> None:
    zone, day = CHANGES[1]
    start, end = local_ms(day - timedelta(days=2), zone), local_ms(day + timedelta(days=3), zone)
    async with idle_gateway(tmp_path) as gateway:
        job_id = await add(gateway, "15 * * * *", zone, start)
        at, set_back = start, start + 20 * HOUR
        while at < end:
            await gateway.scheduler.run_once(at)
            at += 5 * MINUTE
            if at >= set_back:
                at, set_back = at - HOUR, set_back + 24 * HOUR
        due = [run.due_at_ms for run in await runs(gateway, job_id)]
        assert len(due) == len(set(due)) == (end - start) // HOUR
