"""Jobs and runs in the form of the protocol, with zone and next time."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from hobnob import policy, timing
from hobnob.config import Settings
from hobnob.schedule import outcomes
from hobnob.schedule.runs import session_key_of
from hobnob.types import Job, JobRun, Session

Payload = dict[str, Any]


def job_row(job: Job) -> Payload:
    """A job with its state; times also as text in its zone."""
    schedule = outcomes.schedule_of(job)
    payload = orjson.loads(job.payload)
    if job.tools:
        payload["toolsAllow"] = orjson.loads(job.tools)
    row = {
        "id": job.job_id,
        "name": job.name,
        "description": job.description,
        "agentId": job.agent_id,
        "sessionKey": job.session_key,
        "source": job.source,
        "enabled": job.enabled,
        "deleteAfterRun": job.delete_after_run,
        "createdAtMs": job.created_at_ms,
        "updatedAtMs": job.updated_at_ms,
        "schedule": orjson.loads(job.schedule),
        "scheduleText": timing.described(schedule),
        "timeZone": schedule.zone,
        "sessionTarget": target_text(job),
        "runSessionKey": str(session_key_of(job)) if job.target == "isolated" else None,
        "wakeMode": job.wake_mode,
        "payload": payload,
        "delivery": orjson.loads(job.delivery),
        "failureAlert": orjson.loads(job.failure_alert) if job.failure_alert else None,
        "state": _state(job),
        "configRevision": revision(job),
        "nextRunAtMs": next_at(job),
        "nextRunAt": shown(next_at(job), schedule),
        "lastRunAtMs": job.last_run_at_ms,
        "lastRunAt": shown(job.last_run_at_ms, schedule),
        "lastRunStatus": job.last_status,
        "lastRunError": job.last_error,
        "lastDelivered": _delivered(job.last_delivery_status),
        "lastDeliveryStatus": job.last_delivery_status,
        "lastDeliveryError": job.last_delivery_error,
        "deliveryPreview": _preview(job),
    }
    return _known(row)


def reads(settings: Settings, job: Job) -> str | None:
    """Which sessions the runs of an isolated job can read; None for other jobs, which have their context."""
    if job.target != "isolated":
        return None
    seen = policy.visibility(settings, Session.of(session_key_of(job), sandboxed=job.sandboxed))
    words = {"agent": "the sessions of its agent", "all": "all sessions that policy allows"}
    change = "--session main runs it in the main session; tools.sessions.visibility: agent lets it read chats"
    return words.get(seen, f"only its own session (tools.sessions.visibility is {seen}). {change}")


def compact_row(job: Job) -> Payload:
    """The short form of a list."""
    schedule = outcomes.schedule_of(job)
    return _known(
        {
            "id": job.job_id,
            "name": job.name,
            "enabled": job.enabled,
            "effectiveAgentId": job.agent_id,
            "scheduleKind": orjson.loads(job.schedule)["kind"],
            "schedule": timing.described(schedule),
            "timeZone": schedule.zone,
            "nextRunAtMs": next_at(job),
            "nextRunAt": shown(next_at(job), schedule),
            "lastRunAtMs": job.last_run_at_ms,
            "lastRunStatus": job.last_status,
            "lastRunError": job.last_error,
            "runningAtMs": job.last_run_at_ms if job.turn_id else None,
            "updatedAtMs": job.updated_at_ms,
        }
    )


def run_row(run: JobRun) -> Payload:
    """An entry of the history."""
    delivered = run.delivery_status in ("delivered", "not-requested")
    completion = {"ok": "succeeded" if delivered else "unknown", "running": "unknown"}.get(
        run.status, "failed"
    )
    if run.status == "ok" and run.delivery_status == "not-delivered":
        completion = "failed"
    return _known(
        {
            "ts": run.ended_at_ms or run.started_at_ms,
            "jobId": run.job_id,
            "jobName": run.job_name,
            "agentId": run.agent_id,
            "action": "started" if run.status == "running" else "finished",
            "runId": run.run_id,
            "trigger": run.trigger,
            "status": run.status,
            "completionStatus": completion,
            "error": run.error,
            "summary": run.summary,
            "dueAtMs": run.due_at_ms,
            "runAtMs": run.started_at_ms,
            "durationMs": run.ended_at_ms - run.started_at_ms if run.ended_at_ms else None,
            "sessionKey": run.session_key,
            "sessionId": run.session_id,
            "delivered": _delivered(run.delivery_status),
            "deliveryStatus": run.delivery_status,
            "deliveryError": run.delivery_error,
            "usage": {
                "input_tokens": run.input_tokens,
                "output_tokens": run.output_tokens,
                "total_tokens": run.input_tokens + run.output_tokens,
            },
            "costUsd": run.cost_usd or None,
        }
    )


def next_at(job: Job) -> int | None:
    """When it runs next; a disabled job does not."""
    return job.next_run_at_ms if job.enabled else None


def shown(at_ms: int | None, schedule: timing.Schedule) -> str | None:
    return timing.shown(at_ms, schedule.zone) if at_ms is not None else None


def target_text(job: Job) -> str:
    return job.target if job.target in ("main", "isolated") else f"session:{job.target}"


def revision(job: Job) -> str:
    """Changes when the definition of a job does, not when it runs."""
    parts = [
        job.name,
        job.description,
        job.agent_id,
        job.enabled,
        job.delete_after_run,
        job.schedule,
        job.target,
        job.wake_mode,
        job.payload,
        job.delivery,
        job.failure_alert,
    ]
    return f"sha256:{hashlib.sha256(orjson.dumps(parts)).hexdigest()}"


def _state(job: Job) -> Payload:
    disabled = {
        "reason": job.disabled_reason,
        "atMs": job.disabled_at_ms,
        "consecutiveErrors": job.consecutive_errors,
    }
    return _known(
        {
            "nextRunAtMs": next_at(job),
            "runningAtMs": job.last_run_at_ms if job.turn_id else None,
            "runId": job.turn_id,
            "lastRunAtMs": job.last_run_at_ms,
            "lastRunStatus": job.last_status,
            "lastStatus": job.last_status,
            "lastError": job.last_error,
            "lastDurationMs": job.last_duration_ms,
            "consecutiveErrors": job.consecutive_errors,
            "autoDisabled": disabled if job.disabled_reason else None,
            "lastDelivered": _delivered(job.last_delivery_status),
            "lastDeliveryStatus": job.last_delivery_status,
            "lastDeliveryError": job.last_delivery_error,
        }
    )


def _preview(job: Job) -> Payload:
    delivery = outcomes.delivery_of(job)
    match delivery.mode:
        case "none":
            return {"label": "none", "detail": "the answer stays in the history of the job"}
        case "webhook":
            return {"label": "webhook", "detail": f"the finished run is sent to {delivery.to}"}
    if delivery.channel not in (None, "last"):
        return {"label": f"announce -> {delivery.channel}:{delivery.to}", "detail": "to this chat"}
    own = job.session_key or f"agent:{job.agent_id}:main"
    return {"label": "announce -> last", "detail": f"to the chat of {own}, where people last wrote"}


def _delivered(status: str | None) -> bool | None:
    return None if status in (None, "not-requested", "pending") else status == "delivered"


def _known(row: Payload) -> Payload:
    return {name: value for name, value in row.items() if value is not None}
