"""Verbs on what is kept beside the conversations: answers already given, scheduled jobs, money spent."""

from __future__ import annotations

from datetime import UTC, datetime

from hobnob.errors import NotFound
from hobnob.store.engine.tx import Tx
from hobnob.types import CronJob, Usage, now_ms


def recall(tx: Tx, scope: str, key: str) -> str | None:
    """What was answered to the request with this key."""
    answer: str | None = tx.value("idempotency_get", scope=scope, key=key)
    return answer


def remember(tx: Tx, scope: str, key: str, answer: str) -> None:
    """Keep the answer to a request. One that was kept for the same key stays as it is."""
    tx.run("idempotency_insert", scope=scope, key=key, answer=answer, now_ms=now_ms())


def forget(tx: Tx, before_ms: int) -> int:
    """Drop answers older than that. Returns how many."""
    return tx.run("idempotency_forget", before_ms=before_ms)


def add_job(tx: Tx, job: CronJob) -> CronJob:
    tx.put("cron_insert", job)
    return job


def job(tx: Tx, job_id: str) -> CronJob | None:
    return tx.get(CronJob, "cron_get", job_id=job_id)


def jobs(tx: Tx) -> list[CronJob]:
    return tx.all(CronJob, "cron_list")


def due_jobs(tx: Tx, at_ms: int) -> list[CronJob]:
    return tx.all(CronJob, "cron_due", now_ms=at_ms)


def save_job(tx: Tx, job: CronJob) -> None:
    if not tx.put("cron_update", job):
        raise NotFound(f"There is no scheduled job {job.job_id}.")


def delete_job(tx: Tx, job_id: str) -> None:
    if not tx.run("cron_delete", job_id=job_id):
        raise NotFound(f"There is no scheduled job {job_id}.")


def spend(tx: Tx, usage: Usage, *, context_tokens: int | None = None) -> None:
    """Book a model call on its day and on its session's totals."""
    tx.put("usage_add", usage)
    tx.run(
        "session_spend",
        key=usage.session_key,
        model=usage.model,
        context_tokens=context_tokens,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost_usd=usage.cost_usd,
    )


def spent(tx: Tx, first: str, last: str) -> list[Usage]:
    """What was spent from one day to another, both included."""
    return tx.all(Usage, "usage_between", first=first, last=last)


def today() -> str:
    return datetime.now(UTC).date().isoformat()
