"""Deliveries of jobs and hooks: answers, reports of failures, and the notice that a job was disabled."""

from __future__ import annotations

import logging
from collections.abc import Collection

import orjson

from hobnob import exchanges, keys, policy, timing
from hobnob.config import Settings
from hobnob.config.cron import JobDelivery
from hobnob.delivery_routes import WEBCHAT, DeliveryRoute, delivery_route
from hobnob.records import replace
from hobnob.schedule import outcomes
from hobnob.store import Tx, deliveries, turns
from hobnob.store import sessions as session_rows
from hobnob.types import Job, JobRun, Session, Turn

WEBHOOK = "webhook"
_log = logging.getLogger(__name__)


def described(job: Job) -> str:
    """Where the answer of a run goes, for the agent."""
    delivery = outcomes.delivery_of(job)
    match delivery.mode:
        case "none":
            return "It is kept in the history of the job and sent to nobody."
        case "webhook":
            return "It is sent to another system."
        case _:
            return "It is posted to a chat, so write it for the people who read it there."


def announce(
    tx: Tx, settings: Settings, channels: Collection[str], job: Job, run: JobRun, turn: Turn, text: str
) -> JobRun:
    """Queue the answer of a run for its chat or webhook, which is also told of a failure.

    Returns the run with the state of the delivery.
    """
    delivery = outcomes.delivery_of(job)
    if delivery.mode == "none":
        return run
    if exchanges.is_silent(text) and run.status == "ok":
        return replace(run, delivery_status="not-requested", delivery_error=None)
    session = session_rows.get(tx, turn.session_key)
    verdict = policy.send_policy(settings, session)
    if not verdict.allowed:
        return replace(run, delivery_status="not-delivered", delivery_error=verdict.why)
    if delivery.mode == "webhook":
        route = DeliveryRoute(WEBHOOK, delivery.to or "")
        return _queue(tx, channels, route, session.key, _finished(job, run), run)
    owner = session if job.target != "isolated" else owner_session(tx, job)
    route = _explicit(delivery) or delivery_route(owner) or DeliveryRoute(WEBCHAT, owner.key)
    if _explicit(delivery) is not None:
        return _queue(tx, channels, route, session.key, text, run)
    if owner.key == session.key and route.channel == WEBCHAT:
        return replace(run, delivery_status="delivered")  # the answer is in that chat already
    if owner.key != session.key:
        source = {"kind": "inter_session", "sourceTool": "cron", "sourceSessionKey": session.key}
        turns.accept(
            tx, Turn.of(owner, text, step="note", provenance=source)
        )  # its agent knows what was posted
    return _queue(tx, channels, route, owner.key, text, run)


def answer_hook(tx: Tx, settings: Settings, channels: Collection[str], turn: Turn) -> None:
    """Queue the answer of a hook's or node's turn for the chat that it named. A failure is told there too."""
    wanted = orjson.loads(turn.options).get("deliver")
    text = exchanges.reply_text(turn.reply)
    if turn.outcome not in ("ok", "no_output"):
        text = f"The {_source(turn)} could not be answered: {turn.error}"
    session = session_rows.find(tx, turn.session_key)
    if not wanted or session is None or exchanges.is_silent(text):
        return
    if not policy.send_policy(settings, session).allowed:
        return
    owner, route = session, DeliveryRoute(*wanted) if wanted[0] != "last" else delivery_route(session)
    if wanted[0] == "last" and session.kind in ("hook", "node"):
        owner = session_rows.ensure(tx, Session.of(keys.main_of(session.agent_id)))
        route = delivery_route(owner) or DeliveryRoute(WEBCHAT, owner.key)
        source = {"kind": "inter_session", "sourceTool": session.kind, "sourceSessionKey": session.key}
        turns.accept(tx, Turn.of(owner, text, step="note", provenance=source))
    if route is not None and route.channel in channels:
        deliveries.create(tx, route.delivery(owner.key, text, turn_id=turn.turn_id))


def _source(turn: Turn) -> str:
    """What sent the message of a turn: a node, else a hook."""
    source = orjson.loads(turn.input).get("provenance") or {}
    return "node" if source.get("kind") == "node" else "hook"


def tell_failure(
    tx: Tx, settings: Settings, channels: Collection[str], before: Job, job: Job, at_ms: int
) -> Job:
    """Tell the people of a failing job when it is due, and always that it was disabled."""
    disabled = before.enabled and not job.enabled and job.disabled_reason is not None
    if not disabled and not outcomes.alert_due(
        job, outcomes.alert_of(job, settings.cron.failure_alert), at_ms
    ):
        return job
    zone = outcomes.schedule_of(job).zone
    if disabled:
        after = f"It was disabled: {job.disabled_reason}. `hobnob cron enable {job.job_id}` starts it again."
        _log.warning("job %s (%s) was disabled: %s", job.job_id, job.name, job.disabled_reason)
    elif job.next_run_at_ms is not None:
        after = f"It runs again at {timing.shown(job.next_run_at_ms, zone)}."
    else:
        after = ""
    text = f"The scheduled job {job.name!r} failed: {job.last_error}\n{after}".strip()
    owner = owner_session(tx, job)
    delivery = outcomes.delivery_of(job)
    route = (_explicit(delivery) if delivery.mode == "announce" else None) or delivery_route(owner)
    route = route or DeliveryRoute(WEBCHAT, owner.key)
    source = {"kind": "cron", "sourceTool": "cron", "jobId": job.job_id, "job": job.name}
    turns.accept(tx, Turn.of(owner, text, step="note", provenance=source))
    if route.channel in channels and policy.send_policy(settings, owner).allowed:
        deliveries.create(tx, route.delivery(owner.key, text))
    return replace(job, alerted_at_ms=at_ms)


def owner_session(tx: Tx, job: Job) -> Session:
    """The session whose people a job belongs to: that which made it, else the agent's main session."""
    own = session_rows.find(tx, job.session_key) if job.session_key else None
    if own is not None and own.archived_at_ms is None:
        return own
    return session_rows.ensure(tx, Session.of(keys.main_of(job.agent_id)))


def _explicit(delivery: JobDelivery) -> DeliveryRoute | None:
    if delivery.channel in (None, "last") or not delivery.to:
        return None
    return DeliveryRoute(delivery.channel or "", delivery.to, delivery.account_id, delivery.thread_id)


def _queue(
    tx: Tx, channels: Collection[str], route: DeliveryRoute, session_key: str, text: str, run: JobRun
) -> JobRun:
    if route.channel not in channels:
        error = f"The channel {route.channel} is not connected."
        return replace(run, delivery_status="not-delivered", delivery_error=error)
    created = deliveries.create(tx, route.delivery(session_key, text, turn_id=run.run_id))
    return replace(run, delivery_id=created.delivery_id, delivery_status="pending")


def _finished(job: Job, run: JobRun) -> str:
    """The body of a webhook: the finished run."""
    body = {
        "jobId": job.job_id,
        "jobName": job.name,
        "action": "finished",
        "runId": run.run_id,
        "runAtMs": run.started_at_ms,
        "durationMs": (run.ended_at_ms or run.started_at_ms) - run.started_at_ms,
        "status": run.status,
        "summary": run.summary,
        "error": run.error,
        "sessionKey": run.session_key,
        "sessionId": run.session_id,
        "usage": {"input_tokens": run.input_tokens, "output_tokens": run.output_tokens},
    }
    return orjson.dumps(body).decode()
