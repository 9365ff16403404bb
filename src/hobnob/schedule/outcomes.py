"""What follows a run of a job: the next time, back-off, retries, the end of a job. Pure functions."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import orjson

from hobnob import timing
from hobnob.config.cron import FailureAlert, JobDelivery, JobPayload
from hobnob.records import Struct, replace
from hobnob.types import Job

RETRY_MS = (30_000, 60_000, 300_000)  # before a retry of a run that failed before it did anything
BACKOFF_MS = (30_000, 60_000, 300_000, 900_000, 3_600_000)  # earliest next run after failures in a row
MAX_ERRORS = 10
CATCH_UP_GAP_MS, CATCH_UP_MS = 5_000, 600_000  # between two late jobs, and for all of them together
_ERROR_CHARS = 2_000


class Result(Struct, frozen=True):
    """How a run ended. `transient`: nothing was done, and another attempt may work."""

    status: Literal["ok", "error", "skipped"]
    error: str | None = None
    transient: bool = False
    counts: bool = True
    """Whether an error counts towards back-off and disabling; not when a person stopped the run."""


def schedule_of(job: Job) -> timing.Schedule:
    return _schedule(job.schedule, job.job_id)


def payload_of(job: Job) -> JobPayload:
    return _payload(job.payload)


def delivery_of(job: Job) -> JobDelivery:
    return _delivery(job.delivery)


@lru_cache(1024)
def _schedule(text: str, seed: str) -> timing.Schedule:
    return timing.stored(orjson.loads(text), seed)


@lru_cache(1024)
def _payload(text: str) -> JobPayload:
    return JobPayload.model_validate(orjson.loads(text))


@lru_cache(1024)
def _delivery(text: str) -> JobDelivery:
    return JobDelivery.model_validate(orjson.loads(text))


def alert_of(job: Job, default: FailureAlert) -> FailureAlert:
    return FailureAlert.model_validate(orjson.loads(job.failure_alert)) if job.failure_alert else default


def started(job: Job, turn_id: str | None, at_ms: int, *, manual: bool) -> Job:
    """The job while a run of it is open. Its next time is moved now, so that no crash can start it twice."""
    if manual:
        return replace(job, turn_id=turn_id, last_run_at_ms=at_ms)
    next_at = timing.next_run(schedule_of(job), at_ms)
    return replace(job, turn_id=turn_id, last_run_at_ms=at_ms, next_run_at_ms=next_at, missed_at_ms=None)


def finished(job: Job, result: Result, started_ms: int, at_ms: int) -> Job:
    """The job after a run. Times that passed during the run are left out: runs never overlap."""
    job = replace(
        job,
        turn_id=None,
        last_status=result.status,
        last_error=result.error[:_ERROR_CHARS] if result.error else None,
        last_duration_ms=max(at_ms - started_ms, 0),
    )
    schedule = schedule_of(job)
    recurring = not isinstance(schedule, timing.At)
    next_at = job.next_run_at_ms
    if next_at is not None and next_at <= at_ms:
        next_at = timing.next_after(schedule, at_ms)
    if result.status == "ok":
        return _ended_for_good(replace(job, next_run_at_ms=next_at, consecutive_errors=0, attempts=0))
    if result.status == "skipped" or not result.counts:
        return _ended_for_good(replace(job, next_run_at_ms=next_at, attempts=0))
    job = replace(job, consecutive_errors=job.consecutive_errors + 1)
    if result.transient and job.attempts < len(RETRY_MS) and job.enabled:
        retry_at = at_ms + RETRY_MS[job.attempts]
        if not recurring or next_at is None or retry_at < next_at:
            return _disabled_by_errors(
                replace(job, next_run_at_ms=retry_at, attempts=job.attempts + 1), at_ms
            )
    job = _backed_off(replace(job, next_run_at_ms=next_at, attempts=0), at_ms)
    if job.next_run_at_ms is None and job.enabled:
        reason = "it failed, and has no further time"
        return replace(job, enabled=False, disabled_reason=reason, disabled_at_ms=at_ms)
    return _disabled_by_errors(job, at_ms)


def undelivered(job: Job, error: str, at_ms: int) -> Job:
    """The job after the answer of its last run could not be delivered: that makes the run a failure."""
    errors = job.consecutive_errors + 1
    job = replace(job, last_status="error", last_error=error[:_ERROR_CHARS], consecutive_errors=errors)
    return _disabled_by_errors(_backed_off(job, at_ms), at_ms)


def _backed_off(job: Job, at_ms: int) -> Job:
    """Failures in a row make a recurring job run less often."""
    earliest = at_ms + BACKOFF_MS[min(job.consecutive_errors, len(BACKOFF_MS)) - 1]
    schedule, next_at = schedule_of(job), job.next_run_at_ms
    if isinstance(schedule, timing.At) or next_at is None or next_at >= earliest:
        return job
    return replace(job, next_run_at_ms=timing.next_after(schedule, earliest - 1))


def _ended_for_good(job: Job) -> Job:
    """A job without a further time stays in the list, switched off."""
    return job if job.next_run_at_ms is not None else replace(job, enabled=False)


def _disabled_by_errors(job: Job, at_ms: int) -> Job:
    if job.consecutive_errors < MAX_ERRORS or not job.enabled:
        return job
    reason = f"it failed {job.consecutive_errors} times in a row"
    return replace(job, enabled=False, disabled_reason=reason, disabled_at_ms=at_ms)


def caught_up(job: Job, at_ms: int, number: int, late: int, *, skip: bool) -> Job:
    """The job after a time when nothing ran: it runs once, `number`th of all that are late.

    With `skip`, a recurring job waits for its next time instead.
    """
    if skip and not isinstance(schedule := schedule_of(job), timing.At):
        return replace(job, next_run_at_ms=timing.next_after(schedule, at_ms), missed_at_ms=None, attempts=0)
    gap = min(CATCH_UP_GAP_MS, CATCH_UP_MS // max(late, 1))
    missed = job.missed_at_ms if job.missed_at_ms is not None else job.next_run_at_ms
    return replace(job, next_run_at_ms=at_ms + 1 + number * gap, missed_at_ms=missed)


def alert_due(job: Job, alert: FailureAlert, at_ms: int) -> bool:
    """Whether the chat of a failing job is told now."""
    if not alert.enabled or job.consecutive_errors < 1:
        return False
    if not job.enabled:
        return True  # it is the last chance to say so
    quiet = job.alerted_at_ms is not None and at_ms - job.alerted_at_ms < alert.cooldown_ms
    return job.consecutive_errors >= alert.after and not quiet


def replanned(job: Job, next_at_ms: int | None, at_ms: int) -> Job:
    """The job after the clock was set back by more than a day."""
    return replace(job, next_run_at_ms=next_at_ms, last_run_at_ms=at_ms, missed_at_ms=None, attempts=0)
