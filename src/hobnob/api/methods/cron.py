"""Methods on scheduled jobs, and `wake`. Every answer about a job has its time zone and its next time."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hobnob import keys
from hobnob.api.rpc import Call, Payload, method
from hobnob.config.cron import FailureAlert, JobDelivery, JobPayload, JobSchedule
from hobnob.errors import BadInput
from hobnob.jobs.presentation import compact_row, job_row, reads, run_row
from hobnob.jobs.service import Mode
from hobnob.requests import IdempotencyKey
from hobnob.sessions import InboundMessage
from hobnob.types import Job

JobId = Annotated[str, Field(min_length=1, max_length=128)]
Limit = Annotated[int, Field(ge=1, le=500)]


@method("cron.status", scope="operator.read")
async def cron_status(call: Call) -> Payload:
    """Whether the scheduler is on, how many jobs there are, and when the next one is due."""
    return await call.services.jobs.status()


@method("cron.list", scope="operator.read")
async def cron_list(
    call: Call,
    include_disabled: bool = False,
    limit: Limit = 200,
    offset: Annotated[int, Field(ge=0)] = 0,
    query: str | None = None,
    compact: bool = False,
) -> Payload:
    """Jobs in the order of their next run. `query` is part of a name, an id or a text."""
    found = await call.services.jobs.page(call.operator, include_disabled=include_disabled)
    if query:
        words = query.lower()
        found = [j for j in found if words in f"{j.job_id} {j.name} {j.description} {j.payload}".lower()]
    page = found[offset : offset + limit]
    end = offset + len(page)
    return {
        "jobs": [compact_row(job) if compact else _row(call, job) for job in page],
        "total": len(found),
        "offset": offset,
        "limit": limit,
        "hasMore": end < len(found),
        "nextOffset": end if end < len(found) else None,
    }


@method("cron.get", scope="operator.read")
async def cron_get(call: Call, id: JobId | None = None, job_id: JobId | None = None) -> Payload:
    """One job."""
    return _row(call, await call.services.jobs.get(call.operator, _id(id, job_id)))


@method("cron.add", scope="operator.admin")
async def cron_add(
    call: Call,
    schedule: JobSchedule,
    payload: JobPayload,
    name: str | None = None,
    description: str | None = None,
    agent_id: str | None = None,
    session_key: str | None = None,
    session_target: str | None = None,
    wake_mode: Literal["now", "next-heartbeat"] = "now",
    delivery: JobDelivery | None = None,
    delete_after_run: bool | None = None,
    enabled: bool = True,
    failure_alert: FailureAlert | None = None,
    idempotency_key: IdempotencyKey | None = None,
) -> Payload:
    """Add a job. `sessionKey` is the session whose chat gets the answers, unless `delivery` names one."""
    given: dict[str, Any] = {
        "name": name,
        "description": description,
        "agentId": agent_id,
        "schedule": schedule,
        "sessionTarget": session_target,
        "wakeMode": wake_mode,
        "payload": payload,
        "delivery": delivery,
        "deleteAfterRun": delete_after_run,
        "enabled": enabled,
        "failureAlert": failure_alert,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if session_key is not None:
        session_key = (await call.services.sessions.resolve_or_new(call.operator, session_key)).key
    job = await call.services.jobs.add(
        call.operator, given, session_key=session_key, idempotency_key=idempotency_key
    )
    return _row(call, job)


@method("cron.update", scope="operator.admin")
async def cron_update(
    call: Call,
    patch: dict[str, Any],
    id: JobId | None = None,
    job_id: JobId | None = None,
    expected_config_revision: str | None = None,
) -> Payload:
    """Change a job; null clears a field. Its next time changes only if its schedule does.

    Disabling a job stops its run.
    """
    job = await call.services.jobs.update(
        call.operator, _id(id, job_id), patch, expected=expected_config_revision
    )
    return _row(call, job)


@method("cron.remove", scope="operator.admin")
async def cron_remove(call: Call, id: JobId | None = None, job_id: JobId | None = None) -> Payload:
    """Delete a job and the session of its runs. Its history stays."""
    await call.services.jobs.remove(call.operator, _id(id, job_id))
    return {"ok": True, "removed": True}


@method("cron.run", scope="operator.admin")
async def cron_run(
    call: Call, id: JobId | None = None, job_id: JobId | None = None, mode: Mode = "force"
) -> Payload:
    """Start a run now. The run is stored when this answers; its id is that of its turn, for `agent.wait`."""
    run, reason = await call.services.jobs.run_now(call.operator, _id(id, job_id), mode)
    if run is None:
        return {"ok": True, "ran": False, "reason": reason}
    failed = {"ran": False, "reason": run.error} if run.status == "error" else {}
    return {"ok": True, "enqueued": run.status == "running", "runId": run.run_id, **failed}


@method("cron.runs", scope="operator.read")
async def cron_runs(
    call: Call,
    id: JobId | None = None,
    job_id: JobId | None = None,
    scope: Literal["job", "all"] | None = None,
    run_id: str | None = None,
    status: Literal["running", "ok", "error", "skipped"] | None = None,
    limit: Annotated[int, Field(ge=1, le=200)] = 50,
    cursor: str | None = None,
) -> Payload:
    """The history of a job or of all jobs, newest first."""
    named = None if scope == "all" or (id is None and job_id is None) else _id(id, job_id)
    before = _cursor(cursor)
    found = await call.services.jobs.history(
        call.operator, named, limit=limit, **({"before": before} if before else {})
    )
    last = found[-1] if len(found) == limit else None
    shown = [run for run in found if run_id in (None, run.run_id) and status in (None, run.status)]
    answer: Payload = {"entries": [run_row(run) for run in shown], "hasMore": last is not None}
    return answer | ({"nextCursor": f"{last.started_at_ms}_{last.run_id}"} if last else {})


@method("wake", scope="operator.write")
async def wake(
    call: Call,
    text: str,
    mode: Literal["now", "next-heartbeat"] = "now",
    session_key: str | None = None,
    agent_id: str | None = None,
) -> Payload:
    """A message for a main session or another one: `now` starts a turn, else the next turn reads it."""
    key = session_key or (f"agent:{keys.agent_id(agent_id)}:main" if agent_id else "main")
    message = InboundMessage(text, plain=True, step="message" if mode == "now" else "note")
    turn = await call.services.sessions.send(call.operator, key, message)
    return {"ok": True, "runId": turn.turn_id, "sessionKey": turn.session_key}


def _id(id: str | None, job_id: str | None) -> str:
    if (found := id or job_id) is None:
        raise BadInput("Give the id of the job.")
    return found


def _cursor(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    at, _, run_id = text.partition("_")
    if not at.isdigit() or len(at) > 15:
        raise BadInput("The cursor is not one of cron.runs.")
    return int(at), run_id


def _row(call: Call, job: Job) -> Payload:
    seen = reads(call.services.config.settings, job)
    return job_row(job) | ({"readsPreview": seen} if seen else {})
