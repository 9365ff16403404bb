"""The jobs of the settings: bring the stored ones in line with `cron.jobs`."""

from __future__ import annotations

import logging
from collections.abc import Collection

from hobnob.config import Settings
from hobnob.errors import HobnobError
from hobnob.jobs import definitions
from hobnob.keys import parse
from hobnob.models.catalog import Catalog
from hobnob.store import Tx, jobs
from hobnob.store import sessions as session_rows
from hobnob.types import Job, Session

_log = logging.getLogger(__name__)


def sync(tx: Tx, settings: Settings, models: Catalog, channels: Collection[str], now_ms: int) -> list[str]:
    """Add, change and remove declared jobs. Returns what was wrong with some; the others are in effect.

    A job that stays keeps its next time and its history, unless its schedule changed.
    """
    stored = {job.job_id: job for job in jobs.declared(tx)}
    problems = []
    for spec in settings.cron.jobs:
        before = stored.pop(spec.id, None)
        try:
            agent = spec.agent_id or settings.default_agent.id
            target = spec.session_target or ("main" if spec.payload.kind == "systemEvent" else "isolated")
            if target not in ("main", "isolated"):
                target = definitions.target_key(settings, agent, target)
            elif before is None and (other := jobs.find(tx, spec.id)) is not None:
                raise ValueError(f"another job has this id, made by {other.source}")
            fixed = {"job_id": spec.id, "agent_id": agent, "target": target, "source": "settings"}
            job = definitions.define(settings, models, channels, before, spec, now_ms, **fixed)
        except (HobnobError, ValueError) as problem:
            problems.append(f"cron.jobs[{spec.id}]: {getattr(problem, 'message', problem)}")
            continue
        if target not in ("main", "isolated"):
            session_rows.ensure(tx, Session.of(parse(target)))
        _store(tx, before, job)
    for gone in stored.values():
        jobs.delete(tx, gone)
    for text in problems:
        _log.error("declared job not in effect: %s", text)
    return problems


def _store(tx: Tx, before: Job | None, job: Job) -> None:
    if before is None:
        jobs.create(tx, job)
    elif before != job:
        jobs.save(tx, job)
