"""Start and finish runs of jobs, each in one transaction.

A due job becomes a turn in the transaction that moves its next time, so it runs once whatever dies when. A
run ends in the transaction that ends its turn: outcome, history, delivery and the next time belong together.
"""

from __future__ import annotations

from collections.abc import Collection

import orjson

from hobnob import briefings, exchanges, keys, policy, timing
from hobnob.config import Settings
from hobnob.keys import SessionKey, Shape
from hobnob.records import replace
from hobnob.schedule import deliveries, outcomes
from hobnob.schedule.outcomes import Result
from hobnob.store import Tx, jobs, turns
from hobnob.store import sessions as session_rows
from hobnob.types import Delivery, Job, JobRun, Pool, RunTrigger, Session, Turn, new_id, now_ms

STEP = "job"  # of the turn that is a run
DEFAULT_TIMEOUT_S = 3600
_SUMMARY_CHARS = 4_000


def session_key_of(job: Job) -> SessionKey:
    """The session of an isolated job."""
    return SessionKey(job.agent_id, Shape.CRON, job.job_id)


def start_due(tx: Tx, settings: Settings, at_ms: int, *, limit: int = 50) -> int:
    """Start the jobs that are due. Returns how many were found, also those that could not run."""
    found = jobs.due(tx, at_ms, limit=limit)
    for job in found:
        trigger: RunTrigger = "schedule"
        if job.missed_at_ms is not None:
            trigger = "catch-up"
        elif job.attempts:
            trigger = "retry"
        start(tx, settings, job, at_ms, trigger)
    return len(found)


def start(tx: Tx, settings: Settings, job: Job, at_ms: int, trigger: RunTrigger) -> JobRun | None:
    """Start a run of a job that has none; None when another scheduler was faster.

    A job that cannot run, because its agent or session is gone for example, gets a failed run at once.
    """
    run_id = new_id()
    if not jobs.claim(tx, job, run_id):
        return None
    due_at = at_ms if trigger == "manual" else job.missed_at_ms or job.next_run_at_ms or at_ms
    run = JobRun(
        run_id=run_id,
        job_id=job.job_id,
        job_name=job.name,
        agent_id=job.agent_id,
        trigger=trigger,
        due_at_ms=due_at,
        started_at_ms=at_ms,
    )
    late = job.missed_at_ms
    job = outcomes.started(job, run_id, at_ms, manual=trigger == "manual")
    session, problem = _session_for(tx, settings, job)
    if session is None:
        run = jobs.begin_run(tx, run)
        return _close(tx, settings, frozenset(), job, run, None, Result("error", problem), at_ms)
    note = job.wake_mode == "next-heartbeat" and outcomes.payload_of(job).kind == "systemEvent"
    turn = turns.accept(tx, _turn(job, session, run, at_ms, late, note=note))
    run = jobs.begin_run(tx, replace(run, session_key=session.key, session_id=turn.session_id))
    if note:
        return _close(tx, settings, frozenset(), job, run, None, Result("ok"), at_ms)
    jobs.save(tx, job, "started", run)
    return run


def finish(
    tx: Tx, settings: Settings, channels: Collection[str], turn: Turn, *, transient: bool = False
) -> None:
    """End the run whose turn has ended."""
    run = jobs.find_run(tx, turn.turn_id)
    if run is None or run.status != "running":
        return
    spent = turns.get(tx, turn.turn_id)  # the copy of its runner does not count its model calls
    run = replace(
        run, input_tokens=spent.input_tokens, output_tokens=spent.output_tokens, cost_usd=spent.cost_usd
    )
    if turn.outcome in ("ok", "no_output"):
        result = Result("ok")
    else:
        error = turn.error or f"the turn ended as {turn.outcome}"
        result = Result("error", error, transient, counts=turn.outcome != "cancelled")
    job = jobs.find(tx, run.job_id)
    if job is None:  # removed while it ran
        jobs.save_run(tx, _ended(run, turn.reply, result, now_ms()))
    else:
        _close(tx, settings, channels, job, run, turn, result, now_ms())


def session_deleted(tx: Tx, settings: Settings, session_key: str) -> None:
    """End the open runs of a session that is about to be deleted: their turns go with it."""
    for run in jobs.open_runs_in(tx, session_key):
        job = jobs.find(tx, run.job_id)
        result = Result("error", "Its session was deleted.", counts=False)
        if job is None:
            jobs.save_run(tx, _ended(run, None, result, now_ms()))
        else:
            _close(tx, settings, frozenset(), job, run, None, result, now_ms())


def delivered(tx: Tx, settings: Settings, channels: Collection[str], delivery: Delivery) -> None:
    """Record the result of the delivery of a run. A failure makes the run one, unless it is best effort.

    A job that waited for the delivery to be deleted is deleted.
    """
    if delivery.state in ("pending", "sending") or delivery.kind == "reply":
        return
    run = jobs.run_of_delivery(tx, delivery.delivery_id)
    if run is None or run.delivery_status != "pending":
        return
    status = {"delivered": "delivered", "failed": "not-delivered"}.get(delivery.state, "unknown")
    run = replace(run, delivery_status=status, delivery_error=delivery.error)
    job = jobs.find(tx, run.job_id)
    best_effort = job is not None and outcomes.delivery_of(job).best_effort
    failed = status == "not-delivered" and run.status == "ok" and not best_effort
    if failed:
        why = f"The answer could not be delivered: {delivery.error}"
        run = replace(run, status="error", error=why)
    jobs.save_run(tx, run)
    if job is None or job.last_delivery_status != "pending" or job.last_run_at_ms != run.started_at_ms:
        return
    done = status == "delivered" or best_effort
    if done and job.delete_after_run and job.last_status == "ok" and job.next_run_at_ms is None:
        jobs.delete(tx, job, run)
        return
    before, at_ms = job, now_ms()
    job = replace(job, last_delivery_status=status, last_delivery_error=delivery.error)
    if failed:
        job = outcomes.undelivered(job, run.error or "", at_ms)
        job = deliveries.tell_failure(tx, settings, channels, before, job, at_ms)
    elif job.last_status == "ok":
        job = replace(job, consecutive_errors=0)
    jobs.save(tx, job, run=run)


def _close(
    tx: Tx,
    settings: Settings,
    channels: Collection[str],
    job: Job,
    run: JobRun,
    turn: Turn | None,
    result: Result,
    at_ms: int,
) -> JobRun:
    """End a run: its outcome, its delivery, and the next time of its job."""
    reply = exchanges.reply_text(turn.reply) if turn is not None else ""
    run = _ended(run, reply, result, at_ms)
    delivery = outcomes.delivery_of(job)
    if turn is not None and (result.status == "ok" or delivery.mode == "webhook"):
        run = deliveries.announce(tx, settings, channels, job, run, turn, reply)
    if result.status == "ok":
        if run.delivery_status == "not-delivered" and not delivery.best_effort:
            result = Result("error", run.delivery_error)
            run = replace(run, status="error", error=run.delivery_error)
    jobs.save_run(tx, run)
    before = job
    job = replace(
        outcomes.finished(job, result, run.started_at_ms, at_ms),
        last_delivery_status=run.delivery_status,
        last_delivery_error=run.delivery_error,
    )
    settled = run.delivery_status != "pending"
    if result.status == "ok" and not settled and not delivery.best_effort:
        job = replace(job, consecutive_errors=before.consecutive_errors)  # until it is delivered
    if job.delete_after_run and result.status == "ok" and job.next_run_at_ms is None and settled:
        jobs.delete(tx, job, run)
        return run
    if result.status == "error":
        job = deliveries.tell_failure(tx, settings, channels, before, job, at_ms)
    jobs.save(tx, job, "finished", run)
    return run


def _ended(run: JobRun, reply: str | None, result: Result, at_ms: int) -> JobRun:
    summary = (reply or "")[:_SUMMARY_CHARS] or None
    return replace(run, status=result.status, error=result.error, summary=summary, ended_at_ms=at_ms)


def _session_for(tx: Tx, settings: Settings, job: Job) -> tuple[Session | None, str | None]:
    """The session a run takes place in, or why it cannot. An isolated job gets a new transcript."""
    if settings.agent(job.agent_id) is None:
        return None, f"There is no agent {job.agent_id!r} any more (agents.list)."
    if job.target == "isolated":
        return _isolated_session(tx, job), None
    key = str(keys.main_of(job.agent_id)) if job.target == "main" else job.target
    session = session_rows.find(tx, key)
    if session is None and job.target == "main":
        session = session_rows.create(tx, Session.of(keys.main_of(job.agent_id)))
    if session is None:
        return None, f"The session {key} was deleted."
    if session.archived_at_ms is not None:
        return None, f"The session {key} is archived."
    verdict = policy.send_policy(settings, session)
    return (session, None) if verdict.allowed else (None, verdict.why)


def _isolated_session(tx: Tx, job: Job) -> Session:
    key = session_key_of(job)
    session = session_rows.find(tx, str(key))
    if session is None:
        new = Session.of(key, display_name=f"Job: {job.name}"[:200], sandboxed=job.sandboxed)
        return session_rows.create(tx, new)
    if session.archived_at_ms is not None:
        session_rows.restore(tx, session.key)
    return session_rows.reset(tx, session.key)


def _turn(job: Job, session: Session, run: JobRun, at_ms: int, late: int | None, *, note: bool) -> Turn:
    payload, zone = outcomes.payload_of(job), outcomes.schedule_of(job).zone
    briefing = briefings.job(
        job.name,
        now=timing.shown(at_ms, zone),
        due=timing.shown(late, zone) if late else None,
        delivered=deliveries.described(job),
    )
    options = {
        "model": payload.model,
        "thinking": payload.thinking,
        "extra_system": briefing,
        "tools": orjson.loads(job.tools) if job.tools else None,
        "tools_allow": payload.tools_allow,
    }
    timeout = DEFAULT_TIMEOUT_S if payload.timeout_seconds is None else payload.timeout_seconds
    pool: dict[str, Pool] = {"pool": "cron"} if job.target == "isolated" else {}
    return Turn.of(
        session,
        payload.words,
        turn_id=run.run_id,
        step="note" if note else STEP,
        provenance=briefings.from_job(job.job_id, job.name, run.run_id),
        options=orjson.dumps({name: value for name, value in options.items() if value is not None}).decode(),
        timeout_s=timeout or None,
        **pool,
    )
