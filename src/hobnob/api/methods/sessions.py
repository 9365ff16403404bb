"""Methods on sessions: list, search, create, change, spawn."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from hobnob import keys
from hobnob.api.methods import runs
from hobnob.api.rpc import Call, Payload, method
from hobnob.errors import BadInput, HobnobError, SessionNotFound
from hobnob.models.choice import model_names
from hobnob.requests import (
    LABEL_CHARS,
    LIST_DEFAULT,
    PREVIEW_MAX,
    SEARCH_DEFAULT,
    SEARCH_MAX,
    TIMEOUT_MAX_S,
    WAIT_DEFAULT_S,
    BudgetLimits,
    HistoryQuery,
    IdempotencyKey,
    SearchQuery,
    SessionQuery,
    SpawnRequest,
    WaitQuery,
)
from hobnob.sessions import presentation, resolve
from hobnob.sessions.slash_commands import FOCUS_CHARS
from hobnob.spending import Limits
from hobnob.store.costs.usage import today
from hobnob.types import Session, Usage, now_ms, text_of

Name = Annotated[str, Field(max_length=LABEL_CHARS)]
_PREVIEWS = 64
_PREVIEW_CHARS = 240
_MAX_MINUTES = 100 * 366 * 24 * 60
_ROLES = {"user": "user", "assistant": "assistant", "toolResult": "tool"}


class ListPage(SessionQuery):
    """A session query that refuses numbers out of range."""

    limit: Annotated[int, Field(ge=1)] = LIST_DEFAULT
    active_minutes: Annotated[int, Field(ge=1, le=_MAX_MINUTES)] | None = None
    message_limit: Annotated[int, Field(ge=0, le=PREVIEW_MAX)] = 0


class SearchPage(SearchQuery):
    """A search that refuses numbers out of range."""

    limit: Annotated[int, Field(ge=1, le=SEARCH_MAX)] = SEARCH_DEFAULT


class BoundedWait(WaitQuery):
    """A wait that refuses numbers out of range."""

    timeout_seconds: Annotated[float, Field(ge=0, le=TIMEOUT_MAX_S)] = WAIT_DEFAULT_S


class BoundedSpawn(SpawnRequest):
    """A spawn request that refuses numbers out of range."""

    label: Name | None = None
    run_timeout_seconds: Annotated[int, Field(ge=0, le=TIMEOUT_MAX_S)] | None = None


@method("sessions.list", scope="operator.read")
async def sessions_list(
    call: Call,
    query: ListPage,
    include_last_message: bool = False,
    include_derived_titles: bool = False,
    include_global: bool | None = None,
    include_unknown: bool | None = None,
    configured_agents_only: bool = False,
) -> Payload:
    """A page of sessions, newest first. `keysOnly` restricts it to these sessions.

    `includeStanding` adds to each row its open turns, awaited sessions, tokens and cost.
    """
    messages = max(query.message_limit, 1 if include_last_message else 0)
    page = await call.services.sessions.queries.list(
        call.operator, query.model_copy(update={"message_limit": messages})
    )
    settings = call.services.config.settings
    rows = [
        _list_row(
            row,
            title=include_derived_titles,
            last_message=include_last_message,
            messages=query.message_limit > 0,
        )
        for row in page["sessions"]
        if not configured_agents_only or settings.agent(keys.agent_of(row["key"])) is not None
    ]
    return page | {
        "ts": now_ms(),
        "path": "(multiple)",
        "count": len(rows),
        "sessions": rows,
        "defaults": _default_model(call),
    }


def _list_row(row: Payload, *, title: bool, last_message: bool, messages: bool) -> Payload:
    row |= {"agentId": keys.agent_of(row["key"]), "archived": "archivedAt" in row}
    if title and (name := row.get("displayName") or row.get("label")):
        row["derivedTitle"] = name
    if last_message:
        last = row["messages"][-1:]
        row["lastMessagePreview"] = text_of(last[0])[:_PREVIEW_CHARS] if last else ""
    if not messages:
        row.pop("messages", None)
    return row


def _default_model(call: Call) -> Payload:
    settings = call.services.config.settings
    default = call.services.models.info(model_names(settings, settings.default_agent, None)[0])
    return {
        "modelProvider": default.provider,
        "model": default.id,
        "contextTokens": default.context_window,
    }


@method("sessions.resolve", scope="operator.read")
async def sessions_resolve(
    call: Call,
    key: str | None = None,
    session_id: str | None = None,
    label: str | None = None,
    agent_id: str | None = None,
    include_global: bool | None = None,
    include_unknown: bool | None = None,
) -> Payload:
    """The key and sessionId of the session a key, sessionId or label names."""
    if sum(bool(given) for given in (key, session_id, label)) != 1:
        raise BadInput("Give one of key, sessionId and label.", fix=keys.GRAMMAR)
    session = await call.services.sessions.resolve(
        call.operator, key or session_id or None, label=label or None, agent_id=agent_id
    )
    return {"ok": True, "key": session.key, "sessionId": session.session_id}


@method("sessions.preview", scope="operator.read")
async def sessions_preview(
    call: Call,
    keys: Annotated[list[str], Field(min_length=1)],
    limit: Annotated[int, Field(ge=1, le=50)] = 12,
    max_chars: Annotated[int, Field(ge=20, le=2000)] = 240,
) -> Payload:
    """The last messages of several sessions. A session that is named twice is read once."""
    previews = [await _preview(call, key, limit, max_chars) for key in [*dict.fromkeys(keys)][:_PREVIEWS]]
    return {"ts": now_ms(), "previews": previews}


@method("sessions.search", scope="operator.read")
async def sessions_search(call: Call, query: SearchPage) -> Payload:
    """Messages with all the words, best match first."""
    return await call.services.sessions.queries.search(call.operator, query)


@method("sessions.status", scope="operator.read")
async def sessions_status(call: Call, key: str) -> Payload:
    """The state of a session: open turns, awaited sessions, tokens and cost."""
    return await call.services.sessions.queries.status(call.operator, key)


@method("sessions.describe", scope="operator.read")
async def sessions_describe(call: Call, key: str) -> Payload:
    """One session as a row of the list, with its state."""
    row = await call.services.sessions.queries.status(call.operator, key)
    return {"session": row | {"agentId": keys.agent_of(row["key"])}}


@method("sessions.usage", scope="operator.read")
async def sessions_usage(
    call: Call,
    key: str | None = None,
    start_date: date | None = None,
    end_date: date | None = None,
    limit: Annotated[int, Field(ge=1, le=1000)] = 50,
) -> Payload:
    """Tokens and cost between two days (UTC), the most expensive first; the last 30 days by default."""
    sessions = call.services.sessions
    last = end_date or date.fromisoformat(today())
    first = start_date or last - timedelta(days=min(29, last.toordinal() - 1))
    total, by_session = await sessions.queries.usage(call.operator, str(first), str(last), key, limit)
    rows = [{"key": usage.session_key, "agentId": usage.agent_id} | _used(usage) for usage in by_session]
    totals = _used(total) if total is not None else {}
    return {"startDate": str(first), "endDate": str(last), "totals": totals, "sessions": rows}


def _used(usage: Usage) -> Payload:
    return {
        "calls": usage.calls,
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cacheReadTokens": usage.cache_read_tokens,
        "cacheWriteTokens": usage.cache_write_tokens,
        "totalTokens": usage.input_tokens
        + usage.output_tokens
        + usage.cache_read_tokens
        + usage.cache_write_tokens,
        "costUsd": usage.cost_usd,
    }


@method("sessions.compact", scope="operator.admin")
async def sessions_compact(
    call: Call,
    key: str,
    focus: Annotated[str, Field(max_length=FOCUS_CHARS)] = "",
    max_lines: Annotated[int, Field(ge=1, le=1000)] | None = None,
    timeout_ms: Annotated[int, Field(ge=0)] = 120_000,
) -> Payload:
    """Have the older part summarised, as by `/compact`, and wait for it. Nothing is deleted.

    `maxLines`: how many of the last messages stay as they are. `status` is `running` after the timeout.
    """
    service = call.services.sessions
    turn = await service.compact(call.operator, key, focus=focus.strip(), keep=max_lines)
    turn = await service.wait(turn.turn_id, timeout_ms / 1000)
    answer: Payload = {"ok": True, "key": turn.session_key, "runId": turn.turn_id, "compacted": False}
    if turn.status != "ended":
        reason = "it is not done yet; agent.wait with this runId waits for it"
        return answer | {"status": "running", "reason": reason}
    if turn.outcome != "ok":
        return answer | {"ok": False, "status": turn.outcome, "reason": turn.error or turn.outcome}
    answer["status"] = "ok"
    if (entry := await service.compacted(turn)) is None:
        return answer | {"reason": "there is nothing to summarise yet"}
    facts = entry.message["compaction"]
    answer |= {"compacted": True, "sessionId": turn.session_id, "messageSeq": entry.seq, **facts}
    answer |= {
        "kept": (turn.input_seq or entry.seq) - facts["firstKeptSeq"],
        "summary": text_of(entry.message),
    }
    if why := facts.get("failed"):
        answer["reason"] = f"the summary failed, so messages were left out with a marker: {why}"
    return answer


@method("sessions.create", scope="operator.write")
async def sessions_create(
    call: Call,
    key: str | None = None,
    agent_id: str | None = None,
    label: Name | None = None,
    model: str | None = None,
    message: str | None = None,
) -> Payload:
    """Create a session, and with a message start its first turn."""
    if message is not None:
        call.services.sessions.check_message(message)  # before there is a session without its first turn
    wanted = {"label": label, "model_override": model}
    fields = {name: value for name, value in wanted.items() if value is not None}
    session = await call.services.sessions.create(call.operator, key, agent_id=agent_id, **fields)
    answer = _changed(call, session) | {"sessionId": session.session_id, "runStarted": False}
    if message is None:
        return answer
    turn = await runs.accept(call, session.key, message, None)
    return answer | {"runStarted": True, **runs.started(turn)}


@method("sessions.spawn", scope="operator.write")
async def sessions_spawn(
    call: Call, key: str, request: BoundedSpawn, idempotency_key: IdempotencyKey | None = None
) -> Payload:
    """Start a sub-agent for the session `key`. It reports there when it is done."""
    receipt = await call.services.sessions.spawn_for(
        call.operator, key, request, idempotency_key=idempotency_key
    )
    return receipt.answer()


@method("sessions.wait", scope="operator.write")
async def sessions_wait(call: Call, query: BoundedWait, key: str = "main") -> Payload:
    """Wait until runs have ended, by `ids`, or a group of sub-agents of the session `key`.

    Returns the results of those that have ended, and the others as `pending`. Nothing is used up.
    """
    call.ticket.pause()
    sessions = call.services.sessions
    ended, pending, enough = await sessions.join_runs(
        call.operator, key, query, needs_session=query.group_id is not None
    )
    status = "ok" if enough else "timeout"
    return {"status": status, "completed": await sessions.results(call.operator, ended), "pending": pending}


@method("sessions.patch", scope="operator.write")
async def sessions_patch(
    call: Call,
    key: str,
    label: Name | None = None,
    display_name: Name | None = None,
    model: str | None = None,
    thinking_level: str | None = None,
    verbose_level: str | None = None,
    send_policy: Literal["allow", "deny"] | None = None,
    budget: BudgetLimits | None = None,
    archived: bool | None = None,
    expected_session_id: str | None = None,
    home: Annotated[str, Field(min_length=1, max_length=64)] | None = None,
    force: bool = False,
) -> Payload:
    """Change settings of a session; null removes one. `archived` archives or restores it.

    `budget` covers the session and all that it spawns, from now on. `home`, alone, moves the session and what
    it spawned to another gateway, null to the next one that runs it; with `force` also to one that does not
    run. Files are not copied: `filesAt` says where they are.
    """
    if "home" in call.given:
        return await _move(call, key, home, force=force)
    given = {
        "label": label,
        "display_name": display_name,
        "model": model,
        "thinking_level": thinking_level,
        "verbose_level": verbose_level,
        "send_policy": send_policy,
    }
    fields: dict[str, Any] = {name: value for name, value in given.items() if name in call.given}
    limits = None
    if "budget" in call.given:
        limits = budget.limits if budget is not None else Limits()
    if not fields and archived is None and limits is None:
        raise BadInput(
            "Name what to change: label, displayName, model, thinkingLevel, verboseLevel, sendPolicy,"
            " budget, archived or home."
        )
    if "model" in fields:
        fields["model_override"] = fields.pop("model")
    session = await call.services.sessions.patch(
        call.operator, key, transcript=expected_session_id, archived=archived, budget=limits, **fields
    )
    if session.is_external:  # only its harness knows which model it runs on
        return _changed(call, session)
    settings = call.services.config.settings
    agent = settings.agent(session.agent_id) or settings.default_agent
    model_info = call.services.models.info(model_names(settings, agent, session)[0])
    resolved = {"modelProvider": model_info.provider, "model": model_info.id}
    return _changed(call, session) | {"resolved": resolved}


async def _move(call: Call, key: str, home: str | None, *, force: bool) -> Payload:
    if more := sorted(set(call.given) - {"key", "home", "force"}):
        raise BadInput(f"home is changed alone, without {', '.join(more)}.", fix="Call sessions.patch twice.")
    before, after = await call.services.sessions.move(call.operator, key, home, force=force)
    answer = _changed(call, after) | {"home": after.home, "previousHome": before.home}
    if before.home not in (None, after.home):
        config = call.services.config
        folder = config.workspace(after.agent_id)
        if folder.is_relative_to(config.home):  # the other gateway has a state directory of its own
            folder = "$HOBNOB_HOME" / folder.relative_to(config.home)
        answer["filesAt"] = {"gateway": before.home, "workspace": str(folder)}
    return answer


@method("sessions.reset", scope="operator.admin")
async def sessions_reset(call: Call, key: str, reason: Literal["new", "reset"] = "reset") -> Payload:
    """Start a new transcript. The old one stays readable by its sessionId."""
    return _changed(call, await call.services.sessions.reset(call.operator, key))


@method("sessions.archive", scope="operator.write")
async def sessions_archive(call: Call, key: str) -> Payload:
    """Archive a session: it is not listed and takes no messages until it is restored."""
    return _changed(call, await call.services.sessions.archive(call.operator, key))


@method("sessions.restore", scope="operator.write")
async def sessions_restore(call: Call, key: str) -> Payload:
    """Restore an archived session."""
    return _changed(call, await call.services.sessions.restore(call.operator, key))


@method("sessions.delete", scope="operator.admin")
async def sessions_delete(call: Call, key: str, delete_transcript: bool = True) -> Payload:
    """Delete a session with its transcripts."""
    if not delete_transcript:
        raise BadInput("A transcript is deleted with its session.", fix="Use sessions.archive to keep it.")
    session = await call.services.sessions.delete(call.operator, key)
    return {"ok": True, "key": session.key, "deleted": True, "archived": []}


@method("sessions.cleanup", scope="operator.admin")
async def sessions_cleanup(call: Call, dry_run: bool = False, enforce: bool = False) -> Payload:
    """Remove what is older than `session.maintenance` says; with `dryRun`, only count it.

    With mode `warn` nothing is removed unless `enforce` is set.
    """
    call.require_all_agents()
    if dry_run and enforce:
        raise BadInput("dryRun removes nothing and enforce removes.", fix="Give one of them.")
    mode = call.services.config.settings.session.maintenance.mode
    dry_run = dry_run or (mode == "warn" and not enforce)
    counts = await call.services.retention.clean_up(dry_run=dry_run)
    return {"ok": True, "mode": mode, "dryRun": dry_run, "total": sum(counts.values()), "counts": counts}


def _changed(call: Call, session: Session) -> Payload:
    viewer = resolve.viewer(call.services.config.settings, call.operator)
    style = presentation.row_style(viewer, call.services.config.transcripts)
    entry = presentation.session_row(session, style)[0] | {"agentId": session.agent_id}
    return {"ok": True, "key": session.key, "entry": entry}


async def _preview(call: Call, key: str, limit: int, max_chars: int) -> Payload:
    try:
        page = await call.services.sessions.queries.history(
            call.operator, key, HistoryQuery(limit=limit, include_tools=True)
        )
    except SessionNotFound:
        return {"key": key, "status": "missing", "items": []}
    except HobnobError:  # one unreadable session must not fail the others
        return {"key": key, "status": "error", "items": []}
    items = [
        {"role": _ROLES.get(message["role"], "other"), "text": text[:max_chars]}
        for message in page["messages"]
        if (text := text_of(message) or message.get("errorMessage", ""))
    ]
    return {"key": key, "status": "ok" if items else "empty", "items": items}
