"""Verbs on scheduled jobs and their runs."""

from __future__ import annotations

from hobnob.errors import NotFound
from hobnob.events import JobAction, JobChanged
from hobnob.records import replace
from hobnob.store.engine.tx import Tx
from hobnob.types import Job, JobRun, now_ms

NEWEST = (2**62, "~")  # before every run


def create(tx: Tx, job: Job) -> Job:
    tx.put("job_insert", job)
    return _changed(tx, job, "added")


def find(tx: Tx, job_id: str) -> Job | None:
    return tx.get(Job, "job_get", job_id=job_id)


def get(tx: Tx, job_id: str) -> Job:
    job = find(tx, job_id)
    if job is None:
        raise not_found(job_id)
    return job


def not_found(job_id: str) -> NotFound:
    return NotFound(f"There is no scheduled job {job_id}.", fix="`hobnob cron list --all` shows the jobs.")


def of_turn(tx: Tx, turn_id: str) -> Job | None:
    """The job whose open run is this turn."""
    return tx.get(Job, "job_of_turn", turn_id=turn_id)


def of_session(tx: Tx, session_key: str) -> list[Job]:
    """The jobs that a session made, oldest first."""
    return tx.all(Job, "jobs_of_session", session_key=session_key)


def page(tx: Tx, after: tuple[int, str] = (-1, ""), *, limit: int = 1000) -> list[Job]:
    """Jobs in the order of their creation."""
    return tx.all(Job, "jobs_list", after_ms=after[0], after_id=after[1], limit=limit)


def declared(tx: Tx) -> list[Job]:
    """The jobs that come from the settings."""
    return tx.all(Job, "jobs_declared")


def due(tx: Tx, at_ms: int, *, limit: int = 100) -> list[Job]:
    """Jobs whose next run is at or before `at_ms`, the longest overdue first. Running ones are not due."""
    return tx.all(Job, "jobs_due", now_ms=at_ms, limit=limit)


def next_at(tx: Tx) -> int | None:
    """When the next job is due."""
    at: int | None = tx.value("jobs_next_at")
    return at


def count_late(tx: Tx, at_ms: int) -> int:
    """How many jobs are due at `at_ms`."""
    return int(tx.value("jobs_late_counted", now_ms=at_ms))


def ahead(tx: Tx, after_ms: int) -> list[Job]:
    """Jobs that ran later than this, as the clock said then."""
    return tx.all(Job, "jobs_ahead", after_ms=after_ms)


def count(tx: Tx) -> tuple[int, int]:
    """How many jobs there are, and how many of them are enabled."""
    (row,) = tx.rows("jobs_counted")
    return int(row[0]), int(row[1])


def claim(tx: Tx, job: Job, turn_id: str) -> bool:
    """Take the right to start a job that was found due. False when somebody else has started or moved it."""
    found = tx.run("job_claim", job_id=job.job_id, turn_id=turn_id, next_run_at_ms=job.next_run_at_ms)
    return bool(found)


def save(tx: Tx, job: Job, action: JobAction = "updated", run: JobRun | None = None) -> Job:
    job = replace(job, updated_at_ms=max(job.updated_at_ms, now_ms()))
    if not tx.put("job_update", job):
        raise not_found(job.job_id)
    return _changed(tx, job, action, run)


def delete(tx: Tx, job: Job, run: JobRun | None = None) -> None:
    """Delete a job; its history stays."""
    if not tx.run("job_delete", job_id=job.job_id):
        raise not_found(job.job_id)
    _changed(tx, job, "removed", run)


def begin_run(tx: Tx, run: JobRun) -> JobRun:
    tx.put("job_run_insert", run)
    return run


def find_run(tx: Tx, run_id: str) -> JobRun | None:
    return tx.get(JobRun, "job_run_get", run_id=run_id)


def run_of_delivery(tx: Tx, delivery_id: str) -> JobRun | None:
    return tx.get(JobRun, "job_run_of_delivery", delivery_id=delivery_id)


def save_run(tx: Tx, run: JobRun) -> JobRun:
    tx.put("job_run_update", run)
    return run


def runs(
    tx: Tx, job_id: str | None = None, before: tuple[int, str] = NEWEST, *, limit: int = 50
) -> list[JobRun]:
    """Runs of a job or of all jobs, newest first."""
    page = {"before_ms": before[0], "before_id": before[1], "limit": limit}
    if job_id is None:
        return tx.all(JobRun, "job_runs_recent", **page)
    return tx.all(JobRun, "job_runs_of", job_id=job_id, **page)


def open_runs_in(tx: Tx, session_key: str) -> list[JobRun]:
    """The runs that have not ended in a session."""
    return tx.all(JobRun, "job_runs_open_in", session_key=session_key)


def _changed(tx: Tx, job: Job, action: JobAction, run: JobRun | None = None) -> Job:
    tx.changes.append(JobChanged(job, action, run))
    return job
