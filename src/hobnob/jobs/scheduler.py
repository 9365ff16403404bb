"""The scheduler: starts jobs when they are due.

It sleeps until the next time, at most a minute, so that a changed clock is noticed. Starting a job is one
transaction (`schedule.runs.start`); everything after that is the turn's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from hobnob import crashpoints, timing
from hobnob.config import Config, Settings
from hobnob.effects import Effects
from hobnob.errors import StoreError
from hobnob.events import Change, JobChanged
from hobnob.jobs import declared
from hobnob.models.catalog import Catalog
from hobnob.schedule import outcomes, runs
from hobnob.store import Store, Tx, jobs
from hobnob.types import JobRun, now_ms

BATCH = 25  # jobs started in one transaction
_MAX_SLEEP_MS = 60_000
_JUMP_MS = 30_000  # a wake-up this much too late: the machine slept, or the clock was set
_DAY_MS = 86_400_000
_STORE_RETRY_S = 1.0
_log = logging.getLogger(__name__)


class Scheduler:
    """`prepare` loads what a first turn needs: importing it takes longer than a job may be late."""

    def __init__(
        self,
        store: Store,
        config: Config,
        models: Catalog,
        effects: Effects,
        prepare: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._config = config
        self._models = models
        self._effects = effects
        self._wakeup = asyncio.Event()
        self._synced: Settings | None = None
        self._prepare = prepare
        self._prepared = False
        store.watch(self._on_changes)

    async def run(self) -> None:
        """Catch up with what was missed, then start jobs as they become due, until cancelled."""
        expected = 0  # late jobs are caught up with at the first look
        while True:
            self._wakeup.clear()
            try:
                at = now_ms()
                if at > expected + _JUMP_MS:
                    await self.catch_up(at)
                elif at < expected - _DAY_MS:
                    await self._store.write(forget_future, at)
                await self.run_once(at)
                next_at = await self._store.read_small(jobs.next_at)
                if next_at is not None and not self._prepared:
                    self._prepared = True
                    await self._prepare()
            except StoreError as error:  # for example a full disk: retried
                _log.error("store unavailable, jobs wait: %s", error)
                await asyncio.sleep(_STORE_RETRY_S)
                continue
            sleep_ms = min(_MAX_SLEEP_MS, max((next_at or 2**62) - now_ms(), 0))
            expected = now_ms() + sleep_ms
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(sleep_ms / 1000):  # not wait_for: that can swallow a cancellation
                    await self._wakeup.wait()

    async def run_once(self, at_ms: int) -> int:
        """Start what is due at a given time. Returns how many jobs were started."""
        await self.sync(at_ms)
        started = 0
        while self._config.settings.cron.enabled:
            if await self._store.read_small(jobs.next_at) is None:
                break
            crashpoints.point("before-due")
            found = await self._store.write(runs.start_due, self._config.settings, at_ms, limit=BATCH)
            if found:
                crashpoints.point("after-due")
            started += found
            if found < BATCH:
                break
            await asyncio.sleep(0)
        return started

    async def sync(self, at_ms: int) -> None:
        """Apply `cron.jobs` if the settings changed."""
        settings = self._config.settings
        if settings is self._synced:
            return
        await self._store.write(declared.sync, settings, self._models, self._effects.channels, at_ms)
        self._synced = settings

    async def catch_up(self, at_ms: int) -> int:
        """Spread out the jobs that are overdue, each of which runs once. Returns how many there are."""
        if not self._config.settings.cron.enabled:
            return 0
        await self._store.write(forget_future, at_ms)
        late = await self._store.read_small(jobs.count_late, at_ms)
        done = 0
        skip = self._config.settings.cron.skip_missed_jobs
        while done < late:
            moved = await self._store.write(_spread, at_ms, done, late, skip=skip)
            if not moved:
                break
            done += moved
        return done

    def wake(self) -> None:
        """Look again: the settings may have changed."""
        self._wakeup.set()

    def _on_changes(self, changes: list[Change]) -> None:
        if any(isinstance(change, JobChanged) and change.action != "started" for change in changes):
            self._wakeup.set()


def _spread(tx: Tx, at_ms: int, done: int, late: int, *, skip: bool) -> int:
    found = jobs.due(tx, at_ms, limit=8 * BATCH)
    for number, job in enumerate(found, done):
        # Another gateway may have taken over a moment ago, or this one was restarted: that is no downtime.
        missed = at_ms - (job.next_run_at_ms or 0) > _JUMP_MS
        moved = outcomes.caught_up(job, at_ms, number, late, skip=skip and missed)
        if moved.missed_at_ms is None and job.next_run_at_ms is not None:
            skipped = JobRun(
                job_id=job.job_id,
                job_name=job.name,
                agent_id=job.agent_id,
                due_at_ms=job.next_run_at_ms,
                started_at_ms=at_ms,
                ended_at_ms=at_ms,
                status="skipped",
                error="Missed while Hobnob was not running (cron.skipMissedJobs).",
            )
            jobs.begin_run(tx, skipped)
        jobs.save(tx, moved)
    return len(found)


def forget_future(tx: Tx, at_ms: int) -> int:
    """Plan jobs again that ran in what is now the future: the clock was wrong by more than a day."""
    found = jobs.ahead(tx, at_ms + _DAY_MS)
    for job in found:
        next_at = timing.next_after(outcomes.schedule_of(job), at_ms)
        jobs.save(tx, outcomes.replanned(job, next_at, at_ms))
    return len(found)
