"""Sessions: find them, look at them, change them."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from hobnob import keys
from hobnob.api.methods import runs
from hobnob.api.rpc import Call, Payload, method
from hobnob.errors import BadInput, HobnobError, SessionNotFound
from hobnob.keys import Kind
from hobnob.models.choice import model_names
from hobnob.sessions import SessionQuery, SpawnRequest, presentation, resolve
from hobnob.store import usage as usage_rows
from hobnob.types import Session, Usage, now_ms, text_of

Name = Annotated[str, Field(max_length=512)]
_PREVIEWS = 64
_MINUTES = 100 * 366 * 24 * 60
_ROLES = {"user": "user", "assistant": "assistant", "toolResult": "tool"}


@method("sessions.list", scope="operator.read")
async def sessions_list(
    call: Call,
    limit: Annotated[int, Field(ge=1)] = 100,
    cursor: str | None = None,
    kinds: list[Kind] | None = None,
    agent_id: str | None = None,
    label: str | None = None,
    search: str | None = None,
    active_minutes: Annotated[int, Field(ge=1, le=_MINUTES)] | None = None,
    spawned_by: str | None = None,
    archived: bool | Literal["all"] = False,
    message_limit: Annotated[int, Field(ge=0, le=20)] = 0,
    include_last_message: bool = False,
    include_derived_titles: bool = False,
    include_global: bool | None = None,
    include_unknown: bool | None = None,
    configured_agents_only: bool = False,
    keys_only: Annotated[list[str], Field(max_length=200)] | None = None,
    include_standing: bool = False,
) -> Payload:
    """A page of sessions, newest first; with `keysOnly`, those of these that fit the rest.

    `includeStanding` adds to each what it has under way, whom it waits for and what it cost.
    """
    wanted = SessionQuery(
        kinds=kinds or (),
        limit=limit,
        cursor=cursor,
        agent_id=agent_id,
        label=label,
        search=search,
        active_minutes=active_minutes,
        spawned_by=spawned_by,
        archived=archived,
        message_limit=max(message_limit, 1 if include_last_message else 0),
        keys=keys_only,
        standing=include_standing,
    )
    page = await call.services.sessions.list(call.operator, wanted)
    settings = call.services.config.settings
    rows = []
    for row in page["sessions"]:
        row |= {"agentId": keys.parse(row["key"]).agent, "archived": "archivedAt" in row}
        if configured_agents_only and settings.agent(row["agentId"]) is None:
            continue
        if include_derived_titles and (title := row.get("displayName") or row.get("label")):
            row["derivedTitle"] = title
        if include_last_message:
            row["lastMessagePreview"] = text_of(row["messages"][-1])[:240] if row["messages"] else ""
        if not message_limit:
            row.pop("messages", None)
        rows.append(row)
    default = call.services.models.info(model_names(settings, settings.default_agent, None)[0])
    return page | {
        "ts": now_ms(),
        "path": "(multiple)",
        "count": len(rows),
        "sessions": rows,
        "defaults": {
            "modelProvider": default.provider,
            "model": default.id,
            "contextTokens": default.context_window,
        },
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
    """The key of the session that is meant by a key, a sessionId or a label."""
    if sum(bool(given) for given in (key, session_id, label)) != 1:
        raise BadInput("Give one of key, sessionId and label.")
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
    """The last words of several sessions."""
    previews = [await _preview(call, key, limit, max_chars) for key in keys[:_PREVIEWS]]
    return {"ts": now_ms(), "previews": previews}


@method("sessions.search", scope="operator.read")
async def sessions_search(
    call: Call,
    query: Annotated[str, Field(max_length=4096)],
    session_key: str | None = None,
    limit: Annotated[int, Field(ge=1, le=25)] = 10,
) -> Payload:
    """Messages that hold all the words, best first."""
    return await call.services.sessions.search(call.operator, query, session_key=session_key, limit=limit)


@method("sessions.status", scope="operator.read")
async def sessions_status(call: Call, key: str) -> Payload:
    """How a session is doing: what it has under way, whom it waits for, what it cost."""
    return await call.services.sessions.status(call.operator, key)


@method("sessions.describe", scope="operator.read")
async def sessions_describe(call: Call, key: str) -> Payload:
    """One session, as a row of the list, with what it has under way."""
    row = await call.services.sessions.status(call.operator, key)
    return {"session": row | {"agentId": keys.agent_of(row["key"])}}


@method("sessions.usage", scope="operator.read")
async def sessions_usage(
    call: Call,
    key: str | None = None,
    start_date: date | None = None,
    end_date: date | None = None,
    limit: Annotated[int, Field(ge=1, le=1000)] = 50,
) -> Payload:
    """What sessions cost from one day to another (UTC), the dearest first; the last 30 days by default."""
    last = end_date or date.fromisoformat(usage_rows.today())
    first = start_date or last - timedelta(days=min(29, last.toordinal() - 1))
    spent = await call.services.sessions.spent(call.operator, first.isoformat(), last.isoformat())
    if key is not None:
        session = await call.services.sessions.resolve(call.operator, key, verb="history")
        spent = [usage for usage in spent if usage.session_key == session.key]
    by_session: dict[str, Payload] = {}
    for usage in spent:
        row = by_session.setdefault(usage.session_key, {"key": usage.session_key, "agentId": usage.agent_id})
        _add(row, usage)
    dearest = sorted(by_session.values(), key=lambda row: (-row["costUsd"], -row["totalTokens"], row["key"]))
    totals: Payload = {}
    for usage in spent:
        _add(totals, usage)
    return {"startDate": str(first), "endDate": str(last), "totals": totals, "sessions": dearest[:limit]}


def _add(row: Payload, usage: Usage) -> None:
    used = {
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
    for name, value in used.items():
        row[name] = row.get(name, 0) + value


@method("sessions.compact", scope="operator.admin")
async def sessions_compact(
    call: Call, key: str, max_lines: Annotated[int, Field(ge=1, le=1000)] = 400
) -> Payload:
    """Go on with the last messages only. The whole transcript stays readable by its sessionId."""
    done = await call.services.sessions.compact(call.operator, key, max_lines)
    answer: Payload = {
        "ok": True,
        "key": done.session.key,
        "compacted": done.archived is not None,
        "kept": done.kept,
    }
    if done.archived is None:
        return answer | {"reason": f"it has no more than {max_lines} messages"}
    return answer | {"archived": done.archived, "sessionId": done.session.session_id}


@method("sessions.create", scope="operator.admin")
async def sessions_create(
    call: Call,
    key: str | None = None,
    agent_id: str | None = None,
    label: Name | None = None,
    model: str | None = None,
    message: str | None = None,
) -> Payload:
    """Make a session, and with a message give it its first turn."""
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
    call: Call,
    key: str,
    task: str,
    agent_id: str | None = None,
    runtime: Literal["subagent", "acp"] = "subagent",
    label: Name | None = None,
    model: str | None = None,
    thinking: str | None = None,
    run_timeout_seconds: Annotated[int, Field(ge=0, le=runs.MAX_TIMEOUT_S)] | None = None,
    cleanup: Literal["keep", "delete"] = "keep",
    sandbox: Literal["inherit", "require"] = "inherit",
    idempotency_key: str | None = None,
) -> Payload:
    """Start a sub-agent for the session `key`. It reports there when it is done."""
    wanted = SpawnRequest(
        task=task,
        agent_id=agent_id,
        runtime=runtime,
        label=label,
        model=model,
        thinking=thinking,
        run_timeout_seconds=run_timeout_seconds,
        cleanup=cleanup,
        sandbox=sandbox,
    )
    receipt = await call.services.sessions.spawn_for(
        call.operator, key, wanted, idempotency_key=idempotency_key
    )
    return receipt.shown()


@method("sessions.patch", scope="operator.admin")
async def sessions_patch(
    call: Call,
    key: str,
    label: Name | None = None,
    display_name: Name | None = None,
    model: str | None = None,
    thinking_level: str | None = None,
    verbose_level: str | None = None,
    send_policy: Literal["allow", "deny"] | None = None,
    archived: bool | None = None,
    expected_session_id: str | None = None,
) -> Payload:
    """Change settings of a session; null takes one back. `archived` puts it away or brings it back."""
    sessions = call.services.sessions
    wanted = {
        "label": label,
        "display_name": display_name,
        "model": model,
        "thinking_level": thinking_level,
        "verbose_level": verbose_level,
        "send_policy": send_policy,
    }
    fields: dict[str, Any] = {name: value for name, value in wanted.items() if name in call.given}
    if not fields and archived is None:
        raise BadInput(f"Say what to change: {', '.join([*wanted, 'archived'])}.")
    if "model" in fields:
        fields["model_override"] = fields.pop("model")
    session = await sessions.patch(call.operator, key, expected=expected_session_id, **fields)
    if archived is not None:
        put = sessions.archive if archived else sessions.restore
        session = await put(call.operator, key)
    settings = call.services.config.settings
    if session.is_external:  # its harness knows which model it runs on
        return _changed(call, session)
    agent = settings.agent(session.agent_id) or settings.default_agent
    runs_on = call.services.models.info(model_names(settings, agent, session)[0])
    return _changed(call, session) | {"resolved": {"modelProvider": runs_on.provider, "model": runs_on.id}}


@method("sessions.reset", scope="operator.admin")
async def sessions_reset(call: Call, key: str, reason: Literal["new", "reset"] = "reset") -> Payload:
    """Begin a new transcript. The old one stays readable by its sessionId."""
    return _changed(call, await call.services.sessions.reset(call.operator, key))


@method("sessions.archive", scope="operator.admin")
async def sessions_archive(call: Call, key: str) -> Payload:
    """Put a session away: it is not listed and takes no messages until it is restored."""
    return _changed(call, await call.services.sessions.archive(call.operator, key))


@method("sessions.restore", scope="operator.admin")
async def sessions_restore(call: Call, key: str) -> Payload:
    """Bring an archived session back."""
    return _changed(call, await call.services.sessions.restore(call.operator, key))


@method("sessions.delete", scope="operator.admin")
async def sessions_delete(call: Call, key: str, delete_transcript: bool = True) -> Payload:
    """Remove a session with all that was said in it."""
    if not delete_transcript:
        raise BadInput("A transcript goes with its session.", fix="Use sessions.archive to keep it.")
    session = await call.services.sessions.delete(call.operator, key)
    return {"ok": True, "key": session.key, "deleted": True, "archived": []}


def _changed(call: Call, session: Session) -> Payload:
    viewer = resolve.viewer(call.services.config.settings, call.operator)
    entry = presentation.session_row(session, viewer, call.services.config.home) | {
        "agentId": session.agent_id
    }
    return {"ok": True, "key": session.key, "entry": entry}


async def _preview(call: Call, key: str, limit: int, max_chars: int) -> Payload:
    try:
        page = await call.services.sessions.history(call.operator, key, limit=limit, include_tools=True)
    except SessionNotFound:
        return {"key": key, "status": "missing", "items": []}
    except HobnobError:  # one that may not be read does not spoil the rest
        return {"key": key, "status": "error", "items": []}
    items = [
        {"role": _ROLES.get(message["role"], "other"), "text": text[:max_chars]}
        for message in page["messages"]
        if (text := text_of(message))
    ]
    return {"key": key, "status": "ok" if items else "empty", "items": items}
