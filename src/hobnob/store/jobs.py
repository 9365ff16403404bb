"""Verbs on scheduled jobs."""

from __future__ import annotations

from hobnob.errors import NotFound
from hobnob.store.engine.tx import Tx
from hobnob.types import CronJob


def create(tx: Tx, job: CronJob) -> CronJob:
    tx.put("job_insert", job)
    return job


def find(tx: Tx, job_id: str) -> CronJob | None:
    return tx.get(CronJob, "job_get", job_id=job_id)


def page(tx: Tx) -> list[CronJob]:
    """All jobs, oldest first."""
    return tx.all(CronJob, "jobs_list")


def due(tx: Tx, at_ms: int) -> list[CronJob]:
    """Enabled jobs whose next run is at or before `at_ms`."""
    return tx.all(CronJob, "jobs_due", now_ms=at_ms)


def save(tx: Tx, job: CronJob) -> None:
    if not tx.put("job_update", job):
        raise NotFound(f"There is no scheduled job {job.job_id}.")


def delete(tx: Tx, job_id: str) -> None:
    if not tx.run("job_delete", job_id=job_id):
        raise NotFound(f"There is no scheduled job {job_id}.")
