"""The tool `cron`: an agent manages the scheduled jobs of its own session."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from hobnob.errors import BadInput
from hobnob.jobs.presentation import job_row, run_row
from hobnob.jobs.service import Jobs
from hobnob.policy import Confinement
from hobnob.tools import Context, Tool, tool
from hobnob.types import Session, Turn

Action = Literal["status", "list", "get", "add", "update", "remove", "run", "runs"]
_RUNS = 20
_JOB_NAMESPACE = uuid.UUID("0d0a6e0f-6f1d-4c1c-9d3c-4d1f5b0a7c11")


def cron_tools(
    jobs: Jobs,
    tools_of: Callable[[Session, Turn], Awaitable[list[str]]],
    confinement_of: Callable[[Session], Awaitable[Confinement]],
) -> list[Tool]:
    @tool(group="automation", repeatable=True)
    async def cron(
        context: Context,
        action: Annotated[Action, Field(description="What to do.")],
        job_id: Annotated[str | None, Field(description="For get, update, remove, run, runs.")] = None,
        job: Annotated[
            dict[str, Any] | None,
            Field(
                description="For add: {name?, schedule, payload, sessionTarget?, delivery?}. schedule:"
                ' {"kind":"at","at":"2026-11-20T08:00","tz":"Europe/Vienna"} or {"kind":"at","at":"20m"},'
                ' {"kind":"every","everyMs":3600000}, {"kind":"cron","expr":"0 8 * * 1-5",'
                '"tz":"Europe/Vienna"}.'
                ' payload: {"kind":"agentTurn","message":"…"}. sessionTarget: "current" (default, this'
                ' conversation) or "isolated" (a session of its own). delivery: {"mode":"announce"} (default)'
                ' or {"mode":"none"}.'
            ),
        ] = None,
        patch: Annotated[
            dict[str, Any] | None, Field(description="For update: the fields to change.")
        ] = None,
    ) -> dict[str, Any]:
        """Schedule work for later: once, in intervals, or by a cron expression. Also list and change it.

        You see and manage only the jobs of this session. A job runs with at most the tools you have now, and
        cannot make jobs itself. Name the time zone of the people you talk to; tell them the next time that
        the answer shows.
        """
        session, turn = context.session, context.turn
        if action in ("add", "update", "run"):
            await jobs.check_may_change(session, turn)
        match action:
            case "status":
                return await jobs.status()
            case "list":
                found = await jobs.page(session, include_disabled=True)
                return {"scope": "session", "jobs": [job_row(each) for each in found]}
            case "add":
                if job is None:
                    raise BadInput("add needs job: {schedule, payload}.")
                confinement = await confinement_of(session)
                added = await jobs.add(
                    session,
                    job,
                    turn=turn,
                    tools=await tools_of(session, turn),
                    sandboxed=confinement.sandboxed,
                    idempotency_key=_job_id(context, job),
                )
                return {"status": "ok", **job_row(added)}
            case "get":
                return job_row(await jobs.get(session, _named(job_id)))
            case "update":
                changed = await jobs.update(session, _named(job_id), patch or {})
                return {"status": "ok", **job_row(changed)}
            case "remove":
                await jobs.remove(session, _named(job_id))
                return {"status": "ok", "removed": True}
            case "run":
                run, reason = await jobs.run_now(session, _named(job_id))
                return (
                    {"status": "accepted", "runId": run.run_id} if run else {"status": "ok", "reason": reason}
                )
            case "runs":
                history = await jobs.history(session, _named(job_id), limit=_RUNS)
                return {"runs": [run_row(each) for each in history]}

    return [cron]


def _job_id(context: Context, job: dict[str, Any]) -> str:
    """The same call, run again after a crash, makes no second job. Some models use a call id twice."""
    content = orjson.dumps(job, option=orjson.OPT_SORT_KEYS).decode()
    return str(uuid.uuid5(_JOB_NAMESPACE, f"{context.turn.turn_id} {context.call_id} {content}"))


def _named(job_id: str | None) -> str:
    if not job_id:
        raise BadInput("Give jobId. The action list shows the jobs.")
    return job_id
