"""List sessions: a page of what the caller may see.

What the caller may not see is left out before the page is cut. A page takes a few queries however many
sessions are on it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import orjson

from hobnob import keys, policy
from hobnob.config import Settings
from hobnob.policy import Caller, Operator, grants
from hobnob.records import replace
from hobnob.requests import LIST_MAX, PREVIEW_MAX, SessionQuery
from hobnob.sessions import presentation, resolve
from hobnob.sessions.presentation import Row
from hobnob.store import Tx, entries, homes, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.store.entries import Line
from hobnob.types import Session, now_ms

SCAN_LIMIT = 5_000  # sessions examined for one page
_CHILDREN_SHOWN = 20
_MESSAGES_AT_ONCE = 200  # messages read with one query
_SMALL = 50  # sessions of a page that is read on the event loop
_MAX_MINUTES = 10_000_000
_SOURCES = 20  # agents whose sessions are merged into one page
_FAILED = ("failed", "timeout")  # statuses of sessions whose last turn failed


@dataclass(slots=True)
class _Page:
    """The sessions that match, and how the scan ended. `last` is where the next page continues."""

    sessions: list[Session] = field(default_factory=list)
    last: Session | None = None
    has_more: bool = False
    truncated: str | None = None


def list_page(tx: Tx, settings: Settings, folder: Path | None, caller: Caller, query: SessionQuery) -> Row:
    """A page of sessions, newest first."""
    page = _scan(tx, settings, caller, query, limit=min(max(query.limit, 1), LIST_MAX))
    rows = _rows_within_limit(tx, settings, folder, caller, query, page)
    answer: Row = {"count": len(rows), "sessions": rows, "hasMore": page.has_more}
    answer["visibility"] = visibility(settings, caller)
    if page.has_more and page.last is not None:
        answer["nextCursor"] = presentation.encode_cursor(page.last.updated_at_ms, page.last.key)
    return answer | ({"truncationReason": page.truncated} if page.truncated else {})


def recent(tx: Tx, settings: Settings, caller: Caller, limit: int) -> tuple[Sequence[Session], bool]:
    """The sessions used last, and whether there are more."""
    page = _scan(tx, settings, caller, SessionQuery(limit=limit), limit=limit)
    return page.sessions, page.has_more


def is_small(query: SessionQuery) -> bool:
    """Whether a page takes so little time that it may be read on the event loop."""
    return query.limit <= _SMALL and not query.message_limit and not query.search


def visibility(settings: Settings, caller: Caller) -> Row:
    """How far a caller sees, so that a short list is not mistaken for a complete one."""
    if isinstance(caller, Operator):
        return {"mode": "all", "restricted": caller.agents is not None}
    mode, others = policy.visibility(settings, caller), settings.tools.agent_to_agent
    answer: Row = {"mode": mode, "restricted": mode != "all" or not others.enabled or bool(others.allow)}
    granted = sorted(_granted(settings, caller))
    return answer | ({"granted": granted} if granted else {})


def _granted(settings: Settings, caller: Session) -> dict[str, Sequence[str] | None]:
    """The agents some of whose sessions the caller may list by a grant, each with the keys if only those."""
    return {} if policy.is_clamped(settings, caller) else grants.targets(settings, caller, "list")


def rows(
    tx: Tx,
    settings: Settings,
    folder: Path | None,
    caller: Caller,
    sessions: Sequence[Session],
    *,
    standing: bool = False,
    messages: int = 0,
) -> list[tuple[Row, int]]:
    """Sessions as the caller may see them, each with its size as JSON. A parent or child stays out where the
    caller may not see it.
    """
    may_list = partial(_may_list, settings, caller)
    # A viewer's own session does not change how keys are shown.
    style = presentation.row_style(replace(resolve.viewer(settings, caller), own=None), folder)
    all_keys = [session.key for session in sessions]
    children = session_rows.newest_children(tx, all_keys, _CHILDREN_SHOWN)
    parents = session_rows.by_keys(tx, [session.spawned_by for session in sessions if session.spawned_by])
    states = _activity(tx, settings, caller, sessions) if standing else {}
    if isinstance(caller, Operator):
        for key, shown in _homes(tx, settings, sessions).items():
            states[key] = states.get(key, {}) | shown
    previews: dict[str, list[Line]] = {}
    if messages:  # a grant may allow to list a session, but not to read it
        read = [each for each in sessions if _sees_all(caller) or _may_read(settings, caller, each)]
        previews = entries.last_lines(tx, [session.session_id for session in read], messages)
    found = []
    for session in sessions:
        parent = parents.get(session.spawned_by or "")
        row, size = presentation.session_row(
            session,
            style,
            tuple(child.key for child in children.get(session.key, ()) if may_list(child)),
            parent.key if parent is not None and may_list(parent) else None,
        )
        more = states.get(session.key)
        if messages:
            lines = previews.get(session.session_id, [])
            said = presentation.messages(lines, presentation.LIST_BYTES // 2).messages
            more = (more or {}) | {"messages": said}
        row = row | more if more else row.copy()
        found.append((row, len(orjson.dumps(row)) if more else size))
    return found


def _homes(tx: Tx, settings: Settings, sessions: Sequence[Session]) -> dict[str, Row]:
    """Which gateway has the files of each session, and whether it runs; for those that have a home."""
    own = settings.home_name
    if own is None or not (at_home := [session for session in sessions if session.home is not None]):
        return {}
    running = homes.alive(tx)
    return {
        session.key: {"home": session.home, "homeState": homes.state(str(session.home), own, running)}
        for session in at_home
    }


def _rows_within_limit(
    tx: Tx, settings: Settings, folder: Path | None, caller: Caller, query: SessionQuery, page: _Page
) -> list[Row]:
    """The rows of a page up to the byte limit. Messages are read in batches: most may not be needed."""
    messages = min(max(query.message_limit, 0), PREVIEW_MAX)
    batch = max(_MESSAGES_AT_ONCE // messages, 1) if messages else LIST_MAX
    found: list[Row] = []
    size = 2
    for start in range(0, len(page.sessions), batch):
        part = page.sessions[start : start + batch]
        standing = query.include_standing
        for row, row_size in rows(tx, settings, folder, caller, part, standing=standing, messages=messages):
            size += row_size + 1
            if size > presentation.LIST_BYTES and found:
                page.truncated, page.has_more = "byte-limit", True
                page.last = page.sessions[len(found) - 1]
                return found
            found.append(row)
    return found


def _activity(tx: Tx, settings: Settings, caller: Caller, sessions: Sequence[Session]) -> dict[str, Row]:
    """What each session is doing: open turns, awaited sessions, tokens and cost."""
    viewer = resolve.viewer(settings, caller)
    all_keys = [session.key for session in sessions]
    open_turns = turns.count_open_of(tx, all_keys)
    awaited = exchange_rows.awaited_by_any(tx, all_keys)
    errors = _last_errors(tx, [session for session in sessions if session.status in _FAILED])
    targets = session_rows.by_keys(tx, [key for waits in awaited.values() for key in waits])
    visible = {key for key, target in targets.items() if _may_list(settings, caller, target)}
    return {
        session.key: {
            "openTurns": open_turns.get(session.key, 0),
            "waitsFor": [
                keys.display_stored(key, viewer) for key in awaited.get(session.key, ()) if key in visible
            ],
            "inputTokens": session.input_tokens,
            "outputTokens": session.output_tokens,
            "costUsd": round(session.cost_usd, 6),
        }
        | ({"lastError": errors[session.session_id]} if session.session_id in errors else {})
        for session in sessions
    }


def _last_errors(tx: Tx, failed: Sequence[Session]) -> dict[str, str]:
    """Why the last turn of each of these sessions failed, by the id of the transcript."""
    found = {}
    for session_id, lines in entries.last_lines(tx, [session.session_id for session in failed], 3).items():
        newest = reversed(presentation.messages(lines).messages)
        reasons = (str(message["errorMessage"]) for message in newest if message.get("errorMessage"))
        if reason := next(reasons, None):
            found[session_id] = reason
    return found


def _scan(tx: Tx, settings: Settings, caller: Caller, query: SessionQuery, *, limit: int) -> _Page:
    page = _Page()
    conditions = _conditions(settings, caller, query)
    for scanned, session in enumerate(_candidates(tx, settings, caller, query), 1):
        if not all(meets(session) for meets in conditions):
            if scanned >= SCAN_LIMIT:
                page.truncated, page.has_more, page.last = "scan-limit", True, session
                return page
            continue
        if len(page.sessions) == limit:
            page.has_more = True
            return page
        page.sessions.append(session)
        page.last = session
    return page


def _candidates(tx: Tx, settings: Settings, caller: Caller, query: SessionQuery) -> Iterator[Session]:
    """Sessions in list order, narrowed where an index allows it."""
    if query.keys_only is not None:
        named = session_rows.by_keys(tx, query.keys_only[:LIST_MAX]).values()
        yield from sorted(named, key=_order)
        return
    if query.label is not None:
        yield from _after_cursor(query, session_rows.with_label(tx, query.label.strip()))
        return
    if query.spawned_by is not None:
        yield from _children(tx, settings, caller, query)
        return
    pages = partial(_pages, tx, query)
    agent_id = keys.agent_id(query.agent_id) if query.agent_id else None
    if isinstance(caller, Operator):
        yield from pages(agent_id=agent_id)
        return
    mode = policy.visibility(settings, caller)
    if mode == "all" and not settings.tools.agent_to_agent.enabled:
        mode = "agent"  # other agents are out of reach
    granted = _granted(settings, caller) if mode != "all" else {}
    if mode == "all" or (mode == "agent" and agent_id is not None) or _is_wide(granted):
        yield from pages(agent_id=agent_id)
        return
    if mode == "self":
        sources = [_after_cursor(query, session_rows.by_keys(tx, [caller.key]).values())]
    else:
        sources = [pages(tree_of=caller)]
    if mode == "agent":
        sources.append(pages(agent_id=caller.agent_id))
    for to, only in granted.items():
        if agent_id not in (None, to):
            continue
        if only is None:
            sources.append(pages(agent_id=to))
        else:
            named = session_rows.by_keys(tx, only[:LIST_MAX]).values()
            sources.append(_after_cursor(query, sorted(named, key=_order)))
    last = None
    for session in heapq.merge(*sources, key=_order):
        if session.key != last:
            yield session
        last = session.key


def _is_wide(granted: Mapping[str, Sequence[str] | None]) -> bool:
    """Whether grants cover so much that going through all sessions is less work."""
    return (
        "*" in granted
        or len(granted) > _SOURCES
        or any(only and len(only) > LIST_MAX for only in granted.values())
    )


def _children(tx: Tx, settings: Settings, caller: Caller, query: SessionQuery) -> Iterator[Session]:
    """The direct children of a session. Their number is limited, so they are sorted here."""
    parent = str(keys.parse(str(query.spawned_by), resolve.viewer(settings, caller)))
    yield from _after_cursor(query, sorted(session_rows.children(tx, parent), key=_order))


def _after_cursor(query: SessionQuery, found: Iterable[Session]) -> Iterator[Session]:
    """The sessions after the cursor, of some in list order."""
    after = presentation.decode_cursor(query.cursor, int, str) if query.cursor else None
    for session in found:
        if after is None or _order(session) > (-after[0], after[1]):
            yield session


def _pages(
    tx: Tx, query: SessionQuery, *, agent_id: str | None = None, tree_of: Session | None = None
) -> Iterator[Session]:
    if query.archived == "all":
        both = (query.model_copy(update={"archived": archived}) for archived in (False, True))
        pages = [_pages(tx, each, agent_id=agent_id, tree_of=tree_of) for each in both]
        yield from heapq.merge(*pages, key=_order)
        return
    after = presentation.decode_cursor(query.cursor, int, str) if query.cursor else None
    size = min(max(query.limit, 1), LIST_MAX) + 1  # one more shows whether there are more
    while True:
        page = session_rows.page(
            tx,
            agent_id=agent_id,
            tree_of=tree_of,
            kinds=query.kinds or (),
            archived=query.archived,
            since_ms=_since_ms(query),
            after=(after[0], after[1]) if after else None,
            limit=size,
        )
        yield from page
        if len(page) < size:
            return
        after = (page[-1].updated_at_ms, page[-1].key)


def _since_ms(query: SessionQuery) -> int:
    if query.active_minutes is None:
        return 0
    return now_ms() - min(max(query.active_minutes, 1), _MAX_MINUTES) * 60_000


def _conditions(settings: Settings, caller: Caller, query: SessionQuery) -> list[Callable[[Session], bool]]:
    """What a session must meet to be listed, without the conditions that are the same for every session."""
    found: list[Callable[[Session], bool]] = []
    if not _sees_all(caller):
        found.append(partial(_may_list, settings, caller))
    if kinds := query.kinds:
        found.append(lambda session: session.kind in kinds)
    if query.archived != "all":
        found.append(lambda session: (session.archived_at_ms is not None) == query.archived)
    if since_ms := _since_ms(query):
        found.append(lambda session: session.updated_at_ms >= since_ms)
    if query.agent_id:
        agent_id = keys.agent_id(query.agent_id)
        found.append(lambda session: session.agent_id == agent_id)
    if query.search:
        words = query.search.casefold().split()
        found.append(lambda session: _has_words(session, words))
    return found


def _has_words(session: Session, words: list[str]) -> bool:
    text = " ".join(filter(None, (session.key, session.label, session.display_name))).casefold()
    return all(word in text for word in words)


def _sees_all(caller: Caller) -> bool:
    return isinstance(caller, Operator) and caller.agents is None and caller.holds("operator.read")


def _may_list(settings: Settings, caller: Caller, session: Session) -> bool:
    return _sees_all(caller) or policy.may(settings, caller, "list", session).allowed


def _may_read(settings: Settings, caller: Caller, session: Session) -> bool:
    return policy.may(settings, caller, "history", session).allowed


def _order(session: Session) -> tuple[int, str]:
    """Newest first, ties by key."""
    return -session.updated_at_ms, session.key
