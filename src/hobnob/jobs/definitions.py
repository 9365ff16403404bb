"""Turn the definition of a job, from a client, an agent or the settings, into a row. Raises BadInput."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import orjson
from pydantic import ValidationError

from hobnob import keys, parameters, timing
from hobnob.config import Settings
from hobnob.config.cron import JobDelivery, JobSchedule, JobSpec
from hobnob.errors import BadInput, UnknownAgent
from hobnob.fixes import config_set
from hobnob.models.catalog import Catalog
from hobnob.records import replace
from hobnob.schedule.deliveries import WEBHOOK
from hobnob.types import Job

NAME_CHARS = 60


def spec_of(given: dict[str, Any]) -> JobSpec:
    """The checked definition."""
    try:
        return JobSpec.model_validate(given)
    except ValidationError as problem:
        raise BadInput(f"invalid job: {parameters.explain(JobSpec, problem)}") from None


def spec_dict(job: Job) -> dict[str, Any]:
    """The definition of a stored job, to be changed."""
    target = job.target if job.target in ("main", "isolated") else f"session:{job.target}"
    return {
        "name": job.name,
        "description": job.description,
        "agentId": job.agent_id,
        "enabled": job.enabled,
        "deleteAfterRun": job.delete_after_run,
        "schedule": orjson.loads(job.schedule),
        "sessionTarget": target,
        "wakeMode": job.wake_mode,
        "payload": orjson.loads(job.payload),
        "delivery": orjson.loads(job.delivery),
        "failureAlert": orjson.loads(job.failure_alert) if job.failure_alert else None,
    }


def patched(job: Job, patch: dict[str, Any]) -> JobSpec:
    """The definition of a job with some fields changed; null clears one. Payload and delivery are merged."""
    merged = spec_dict(job)
    for name, value in patch.items():
        before = merged.get(name)
        if name in ("payload", "delivery") and isinstance(value, dict) and isinstance(before, dict):
            same_kind = value.get("kind", before.get("kind")) == before.get("kind")
            both = {**before, **value} if same_kind else value
            merged[name] = {key: item for key, item in both.items() if item is not None}
        else:
            merged[name] = value
    return spec_of({name: value for name, value in merged.items() if value is not None})


def define(
    settings: Settings,
    models: Catalog,
    channels: Collection[str],
    job: Job | None,
    spec: JobSpec,
    now_ms: int,
    **fixed: Any,
) -> Job:
    """A new job, or `job` with another definition. Its next time changes only if its schedule does.

    `fixed` has `agent_id`, `target` and what else the caller decided.
    """
    _check_agent(settings, fixed["agent_id"])
    if spec.payload.model:
        models.info(spec.payload.model)
    _check_delivery(spec.delivery, channels)
    seed = job.job_id if job is not None else fixed["job_id"]
    schedule_text, schedule = _resolved(settings, spec.schedule, seed, now_ms, job)
    fields: dict[str, Any] = {
        "name": (spec.name or "").strip() or _name_from(spec.payload.words),
        "description": spec.description,
        "enabled": spec.enabled,
        "delete_after_run": spec.schedule.kind == "at"
        if spec.delete_after_run is None
        else spec.delete_after_run,
        "schedule": schedule_text,
        "wake_mode": spec.wake_mode,
        "payload": _json(spec.payload),
        "delivery": _json(spec.delivery),
        "failure_alert": _json(spec.failure_alert) if spec.failure_alert is not None else None,
        **fixed,
    }
    if job is None:
        next_at = timing.next_after(schedule, now_ms)
        return Job(**fields, next_run_at_ms=next_at, created_at_ms=now_ms, updated_at_ms=now_ms)
    changed = replace(job, **{name: value for name, value in fields.items() if name != "job_id"})
    if spec.enabled and not job.enabled:
        changed = replace(changed, disabled_reason=None, disabled_at_ms=None, consecutive_errors=0)
    if job.schedule != schedule_text or (spec.enabled and not job.enabled):
        next_at = timing.next_after(schedule, now_ms)
        if next_at is None and spec.enabled:
            raise BadInput("The job has no further time.", fix="Give it a new time: --at, --every or --cron.")
        changed = replace(changed, next_run_at_ms=next_at, missed_at_ms=None, attempts=0)
    return changed


def _resolved(
    settings: Settings, spec: JobSchedule, seed: str, now_ms: int, job: Job | None
) -> tuple[str, timing.Schedule]:
    """The schedule as it is stored: with its zone, anchor and point in time made explicit."""
    if job is not None and _json(spec) == job.schedule:
        return job.schedule, timing.stored(orjson.loads(job.schedule), seed)
    try:
        parsed = spec.parsed(now_ms, settings.cron.timezone, seed)
    except timing.BadSchedule as problem:
        raise BadInput(f"schedule: {problem}") from None
    match parsed:
        case timing.At(at_ms, zone):
            at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
            explicit: dict[str, Any] = {"at": at.replace("+00:00", "Z"), "tz": zone}
        case timing.Every(_, anchor_ms, zone):
            explicit = {"anchor_ms": anchor_ms, "tz": zone}
        case timing.Cron(expr, zone):
            explicit = {"expr": expr, "tz": zone}
    return _json(spec.model_copy(update=explicit)), parsed


def _check_agent(settings: Settings, agent_id: str) -> None:
    if settings.agent(agent_id) is None:
        known = ", ".join(agent.id for agent in settings.agent_list())
        raise UnknownAgent(
            f"There is no agent {agent_id!r} (configured: {known}).",
            fix=config_set(f"agents.list[{agent_id}].id", agent_id),
        )


def _check_delivery(delivery: JobDelivery, channels: Collection[str]) -> None:
    chats = sorted(set(channels) - {WEBHOOK})
    if delivery.mode == "announce" and delivery.channel not in (None, "last", *chats):
        raise BadInput(
            f"The channel {delivery.channel!r} is not connected (connected: {', '.join(chats)}).",
            fix="Leave the channel out for the chat where people last wrote to the agent.",
        )


def _name_from(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= NAME_CHARS else words[: NAME_CHARS - 1].rstrip() + "…"


def _json(section: Any) -> str:
    return orjson.dumps(section.model_dump(by_alias=True, exclude_none=True)).decode()


def target_key(settings: Settings, agent_id: str, reference: str) -> str:
    """The full key of a target `session:<key>`, as the agent reads it."""
    key = keys.parse(reference.removeprefix("session:"), settings.viewer(agent_id))
    if key.is_child:
        raise BadInput("A job cannot run in the session of a sub-agent.", fix="Use sessionTarget isolated.")
    return str(key)
