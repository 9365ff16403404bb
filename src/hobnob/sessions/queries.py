"""Listing, reading and searching: functions of a transaction that answer a caller."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import orjson

from hobnob import keys, policy
from hobnob.config import Settings
from hobnob.errors import BadInput, NotFound
from hobnob.keys import Kind
from hobnob.policy import Caller, Operator
from hobnob.sessions import presentation, resolve
from hobnob.sessions.presentation import Row
from hobnob.store import Tx, deliveries, entries, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.types import Exchange, Session, now_ms, text_of

LIST_DEFAULT, LIST_MOST, PREVIEW_MOST = 100, 200, 20
HISTORY_DEFAULT, HISTORY_MOST = 200, 1000
SEARCH_DEFAULT, SEARCH_MOST = 10, 25
SCAN = 5_000  # sessions looked at for one page
_HITS = 200
_CHILDREN = 20
_LONGEST_MINUTES = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionQuery:
    """Which sessions a caller asks for."""

    kinds: Sequence[Kind] = ()
    limit: int = LIST_DEFAULT
    active_minutes: int | None = None
    message_limit: int = 0
    cursor: str | None = None
    label: str | None = None
    agent_id: str | None = None
    search: str | None = None
    archived: bool | Literal["all"] = False
    spawned_by: str | None = None
    keys: Sequence[str] | None = None  # of these only, by their full keys
    standing: bool = False  # with what each has under way, whom it waits for, what it cost


def list_page(tx: Tx, settings: Settings, home: Path, caller: Caller, wanted: SessionQuery) -> Row:
    """A page of the sessions a caller may see. What it may not see is left out before the page is cut."""
    limit = min(max(wanted.limit, 1), LIST_MOST)
    previews = min(max(wanted.message_limit, 0), PREVIEW_MOST)
    viewer = resolve.viewer(settings, caller)
    found: list[Row] = []
    size, looked, reason, last = 2, 0, None, None
    more = False
    for session in _candidates(tx, settings, caller, wanted):
        looked += 1
        if not _matches(settings, caller, session, wanted):
            if looked >= SCAN:
                reason, more, last = "scan-limit", True, session
                break
            continue
        if len(found) == limit:
            more = True
            break
        row = _row(tx, settings, home, caller, viewer, session)
        if wanted.standing:
            row |= _standing(tx, settings, caller, viewer, session)
        if previews:
            recent = entries.lines(tx, session.session_id, limit=previews, tools=False)
            row["messages"] = presentation.messages(recent, presentation.LIST_BYTES // 2).messages
        size += len(orjson.dumps(row)) + 1
        if size > presentation.LIST_BYTES and found:
            reason, more = "byte-limit", True
            break
        found.append(row)
        last = session
    answer: Row = {"count": len(found), "sessions": found, "hasMore": more}
    answer["visibility"] = visibility_of(settings, caller)
    if more and last is not None:
        answer["nextCursor"] = presentation.encode_cursor(last.updated_at_ms, last.key)
    return answer | ({"truncationReason": reason} if reason else {})


def _row(
    tx: Tx, settings: Settings, home: Path, caller: Caller, viewer: keys.Viewer, session: Session
) -> Row:
    """A session as the caller may see it: keys of others only when it may see those too."""
    children = session_rows.newest_children(tx, session.key, _CHILDREN)
    seen = [c.key for c in children if policy.may(settings, caller, "list", c).allowed]
    parent = session_rows.find(tx, session.spawned_by) if session.spawned_by else None
    shown = parent is not None and policy.may(settings, caller, "list", parent).allowed
    return presentation.session_row(
        session, viewer, home, children=seen, parent=parent.key if parent and shown else None
    )


def visibility_of(settings: Settings, caller: Caller) -> Row:
    """How far a caller sees, so that a short list is not mistaken for a complete one."""
    if isinstance(caller, Operator):
        return {"mode": "all", "restricted": caller.agents is not None}
    mode, others = policy.visibility(settings, caller), settings.tools.agent_to_agent
    return {"mode": mode, "restricted": mode != "all" or not others.enabled or bool(others.allow)}


def _candidates(tx: Tx, settings: Settings, caller: Caller, wanted: SessionQuery) -> Iterator[Session]:
    """Sessions in the order of a list, narrowed where there is an index for it."""
    if wanted.keys is not None:
        named = [found for key in wanted.keys[:LIST_MOST] if (found := session_rows.find(tx, key))]
        yield from sorted(named, key=lambda s: (-s.updated_at_ms, s.key))
        return
    if wanted.label is not None:
        found = session_rows.by_label(tx, wanted.label.strip())
        yield from [found] if found else []
        return
    if wanted.spawned_by is not None:
        yield from _children(tx, settings, caller, wanted)
        return
    pages = partial(_pages, tx, wanted)
    agent_id = keys.agent_id(wanted.agent_id) if wanted.agent_id else None
    if isinstance(caller, Operator):
        yield from pages(agent_id=agent_id)
        return
    mode = policy.visibility(settings, caller)
    if mode == "all" and not settings.tools.agent_to_agent.enabled:
        mode = "agent"  # it reaches no further
    match mode:
        case "self":
            yield from [own for own in (session_rows.find(tx, caller.key),) if own]
        case "tree":
            yield from pages(tree_of=caller)
        case "agent" if agent_id is None:
            own, spawned = pages(agent_id=caller.agent_id), pages(tree_of=caller)
            last = None
            for session in heapq.merge(own, spawned, key=lambda s: (-s.updated_at_ms, s.key)):
                if session.key != last:
                    yield session
                last = session.key
        case _:
            yield from pages(agent_id=agent_id)


def _children(tx: Tx, settings: Settings, caller: Caller, wanted: SessionQuery) -> Iterator[Session]:
    """What a session spawned itself. There are only as many as it may have, and those that are kept."""
    parent = str(keys.parse(str(wanted.spawned_by), resolve.viewer(settings, caller)))
    place = presentation.decode_cursor(wanted.cursor, int, str) if wanted.cursor else None
    found = [(-child.updated_at_ms, child.key, child) for child in session_rows.children(tx, parent)]
    for at, key, child in sorted(found, key=lambda row: row[:2]):
        if place is None or (at, key) > (-place[0], place[1]):
            yield child


def _pages(
    tx: Tx, wanted: SessionQuery, *, agent_id: str | None = None, tree_of: Session | None = None
) -> Iterator[Session]:
    if wanted.archived == "all":
        both = [
            _pages(tx, replace(wanted, archived=a), agent_id=agent_id, tree_of=tree_of) for a in (False, True)
        ]
        yield from heapq.merge(*both, key=lambda s: (-s.updated_at_ms, s.key))
        return
    since = _since(wanted)
    after = presentation.decode_cursor(wanted.cursor, int, str) if wanted.cursor else None
    chunk = min(max(wanted.limit, 1), LIST_MOST) + 1  # one more tells whether there are more
    while True:
        page = session_rows.page(
            tx,
            agent_id=agent_id,
            tree_of=tree_of,
            kinds=wanted.kinds,
            archived=wanted.archived,
            since_ms=since,
            after=(after[0], after[1]) if after else None,
            limit=chunk,
        )
        yield from page
        if len(page) < chunk:
            return
        after = (page[-1].updated_at_ms, page[-1].key)


def _since(wanted: SessionQuery) -> int:
    """The oldest last use that is asked for."""
    if wanted.active_minutes is None:
        return 0
    return now_ms() - min(max(wanted.active_minutes, 1), _LONGEST_MINUTES) * 60_000


def _matches(settings: Settings, caller: Caller, session: Session, wanted: SessionQuery) -> bool:
    if not policy.may(settings, caller, "list", session).allowed:
        return False
    if wanted.kinds and session.kind not in wanted.kinds:
        return False
    if wanted.archived != "all" and (session.archived_at_ms is not None) != wanted.archived:
        return False
    if session.updated_at_ms < _since(wanted):
        return False
    if wanted.agent_id and session.agent_id != keys.agent_id(wanted.agent_id):
        return False
    if wanted.search:
        named = " ".join(filter(None, (session.key, session.label, session.display_name))).casefold()
        return all(word in named for word in wanted.search.casefold().split())
    return True


def history(
    tx: Tx,
    settings: Settings,
    caller: Caller,
    reference: str,
    *,
    limit: int = HISTORY_DEFAULT,
    include_tools: bool = False,
    cursor: str | None = None,
) -> Row:
    """A page of a transcript, the newest first asked for, each page oldest first."""
    session = resolve.find(tx, settings, caller, "history", reference)
    before = presentation.decode_cursor(cursor, int)[0] if cursor else entries.LAST
    limit = min(max(limit, 1), HISTORY_MOST)
    # A transcript that was reset can still be read by its own id.
    old = reference.strip().lower()
    owner = session_rows.by_id(tx, old) if resolve.is_id(old) else None
    transcript = old if owner is not None and owner.key == session.key else session.session_id
    page: dict[str, Any] = {"before": before, "limit": limit, "tools": include_tools}
    shown = presentation.messages(entries.lines(tx, transcript, **page))
    count = entries.count(tx, transcript, **page) if shown.full else len(shown.messages)
    shown.dropped = count - len(shown.messages)
    viewer = resolve.viewer(settings, caller)
    answer: Row = {
        "sessionKey": keys.shown(session.key, viewer),
        "sessionId": transcript,
        "messages": shown.messages,
        **shown.flags(),
    }
    first = shown.messages[0]["seq"] if shown.messages else 1
    if first > 1 and (shown.dropped or count == limit):
        answer["nextCursor"] = presentation.encode_cursor(first)
    return answer


def search(
    tx: Tx,
    settings: Settings,
    caller: Caller,
    query: str,
    *,
    session_key: str | None = None,
    limit: int = SEARCH_DEFAULT,
) -> Row:
    """Entries that hold all the words, of sessions the caller may search."""
    limit = min(max(limit, 1), SEARCH_MOST)
    only = resolve.find(tx, settings, caller, "search", session_key) if session_key else None
    hits = []
    for narrow in _narrowings(settings, caller, only):
        hits += entries.search(tx, query, limit=_HITS, **narrow)
    seen: set[tuple[str, int]] = set()
    found: list[Row] = []
    size, cut = 2, False
    viewer = resolve.viewer(settings, caller)
    for hit in hits:
        place = (hit.entry.session_id, hit.entry.seq)
        session = session_rows.find(tx, hit.session_key)
        if place in seen or session is None or (only is not None and session.key != only.key):
            continue
        seen.add(place)
        if not policy.may(settings, caller, "search", session).allowed:
            continue
        row = {
            "sessionKey": keys.shown(session.key, viewer),
            "sessionId": hit.entry.session_id,
            "seq": hit.entry.seq,
            "timestamp": hit.entry.created_at_ms,
            "role": hit.entry.role,
            "snippet": presentation.snippet(text_of(hit.entry.message), query.split()),
        }
        if source := hit.entry.message.get("provenance"):
            row["provenance"] = {"kind": source.get("kind"), "sourceTool": source.get("sourceTool")}
        size += len(orjson.dumps(row)) + 1
        if len(found) == limit or size > presentation.SEARCH_BYTES:
            cut = True
            break
        found.append(row)
    return {"count": len(found), "results": found} | ({"truncated": True} if cut else {})


def _narrowings(settings: Settings, caller: Caller, only: Session | None) -> list[dict[str, Any]]:
    """Where to look, so that what the caller may not see does not crowd out what it may."""
    if only is not None:
        return [{"session_key": only.key}]
    if isinstance(caller, Operator):
        return [{}] if caller.agents is None else [{"agent_id": agent} for agent in caller.agents]
    match policy.visibility(settings, caller):
        case "self":
            return [{"session_key": caller.key}]
        case "tree":
            return [{"tree_of": caller}]
        case "agent":
            return [{"agent_id": caller.agent_id}, {"tree_of": caller}]
        case _:
            return [{"agent_id": caller.agent_id}, {"tree_of": caller}, {}]


def exchange(tx: Tx, settings: Settings, caller: Caller, exchange_id: str) -> Row:
    """Who told whom what, step by step, and how it ended."""
    found = exchange_rows.find(tx, exchange_id)
    if found is None or not _may_read(tx, settings, caller, found):
        raise NotFound(f"There is no exchange {exchange_id}.")
    steps = [t for t in exchange_rows.turns(tx, exchange_id) if t.step in ("primary", "reply", "announce")]
    answer = presentation.exchange_row(found) | {"steps": [presentation.step_row(turn) for turn in steps]}
    sent = deliveries.of_exchange(tx, exchange_id)
    if sent:
        last = sent[-1]
        answer["delivery"] = {
            "state": last.state,
            "channel": last.channel,
            "to": last.recipient,
            "attempts": last.attempts,
        } | ({"error": last.error} if last.error else {})
    return answer


def exchanges(
    tx: Tx, settings: Settings, caller: Caller, *, limit: int = 50, cursor: str | None = None
) -> Row:
    """Exchanges, newest first."""
    limit = min(max(limit, 1), LIST_MOST)
    after = presentation.decode_cursor(cursor, int, str) if cursor else None
    page = exchange_rows.page(tx, after=(after[0], after[1]) if after else None, limit=limit)
    shown = [presentation.exchange_row(each) for each in page if _may_read(tx, settings, caller, each)]
    answer: Row = {"count": len(shown), "exchanges": shown}
    if len(page) == limit:
        answer["nextCursor"] = presentation.encode_cursor(page[-1].created_at_ms, page[-1].exchange_id)
    return answer


def _may_read(tx: Tx, settings: Settings, caller: Caller, exchange: Exchange) -> bool:
    """Who may read the history of both sides may read what they told each other."""
    for key in filter(None, (exchange.requester_key, exchange.target_key)):
        side = session_rows.find(tx, key) or Session.of(keys.parse(key))
        if not policy.may(settings, caller, "history", side).allowed:
            return False
    return True


def status(tx: Tx, settings: Settings, home: Path, caller: Caller, reference: str) -> Row:
    """How a session is doing."""
    session = resolve.find(tx, settings, caller, "status", reference)
    viewer = resolve.viewer(settings, caller)
    row = _row(tx, settings, home, caller, viewer, session)
    return row | _standing(tx, settings, caller, viewer, session)


def _standing(tx: Tx, settings: Settings, caller: Caller, viewer: keys.Viewer, session: Session) -> Row:
    """What a session has under way, whom it waits for, what it cost."""
    awaited = [
        keys.shown(key, viewer)
        for key in exchange_rows.awaited_by(tx, session.key)
        if policy.may(settings, caller, "list", session_rows.get(tx, key)).allowed
    ]
    return {
        "openTurns": len(turns.open_of(tx, session.key)),
        "waitsFor": awaited,
        "inputTokens": session.input_tokens,
        "outputTokens": session.output_tokens,
        "costUsd": round(session.cost_usd, 6),
    }


def check_kinds(kinds: Sequence[str]) -> None:
    known = ("main", "group", "cron", "hook", "node", "other")
    if wrong := [kind for kind in kinds if kind not in known]:
        raise BadInput(f"There is no kind {wrong[0]!r} of session. Kinds: {', '.join(known)}.")
