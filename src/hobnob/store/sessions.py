"""Verbs on sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, get_args

import orjson

from hobnob.errors import BadInput, LabelTaken, SessionExists, SessionNotFound
from hobnob.events import Reason, SessionChanged, SessionDeleted, TurnChanged
from hobnob.keys import Kind
from hobnob.records import replace
from hobnob.store import turns
from hobnob.store.engine.tx import Tx
from hobnob.types import Session, new_id, now_ms

Cursor = tuple[int, str]
_FIRST: Cursor = (2**62, "")
_Listed = tuple[str, str, int, int]  # key, session_id, version and updated_at_ms of a session on a page
_MAX_KNOWN = 2_000  # sessions that lists remember
_PATCHABLE = frozenset(
    """session_id label display_name model_override thinking_level verbose_level send_policy last_channel
    last_to last_account_id last_thread_id sandboxed system_sent aborted_last_run context_tokens
    archived_at_ms home""".split()
)


def create(tx: Tx, session: Session) -> Session:
    """Add a session. Raises SessionExists or LabelTaken."""
    if find(tx, session.key):
        raise SessionExists(f"The session {session.key} already exists.")
    check_label(tx, session)
    tx.put("session_insert", session)
    _begin_transcript(tx, session)
    tx.changes.append(SessionChanged(session, "create"))
    return session


def find(tx: Tx, key: str) -> Session | None:
    found = tx.get(Session, "session_by_key", key=key)
    if found is None and tx.concurrent:
        tx.lock("new session", key)  # who finds that it does not exist may be about to create it
        found = tx.get(Session, "session_by_key", key=key)
    return found


def get(tx: Tx, key: str) -> Session:
    session = find(tx, key)
    if session is None:
        raise SessionNotFound(f"There is no session {key}.")
    return session


def lock(tx: Tx, session: Session) -> Session:
    """The session as it is now. Until the transaction ends, no other one changes it, its turns or transcript.

    Raises SessionNotFound when it was deleted since it was read.
    """
    if not tx.concurrent:
        return session
    tx.lock("session", session.key)
    return get(tx, session.key)


def by_keys(tx: Tx, keys: Iterable[str]) -> dict[str, Session]:
    """The sessions of these keys that exist, by key."""
    if not (wanted := sorted(set(keys))):
        return {}
    found = tx.all(Session, "sessions_by_keys", keys=orjson.dumps(wanted).decode())
    return {session.key: session for session in found}


def ensure(tx: Tx, session: Session) -> Session:
    """The session of that key, created when it does not exist."""
    return find(tx, session.key) or create(tx, session)


def by_id(tx: Tx, session_id: str) -> Session | None:
    """The session a transcript belongs to, also when it has a newer one."""
    return tx.get(Session, "session_by_id", session_id=session_id)


def with_label(tx: Tx, label: str) -> Iterator[Session]:
    """All sessions with a label, in the order of lists. Each agent and each requester may have one."""
    return tx.each(Session, "sessions_with_label", label=label)


def children(tx: Tx, key: str) -> list[Session]:
    """The direct children of a session, oldest first."""
    return tx.all(Session, "session_children", key=key)


def newest_children(tx: Tx, keys: Iterable[str], limit: int) -> dict[str, list[Session]]:
    """The newest direct children of each of these sessions that are not archived, at most `limit` each."""
    found: dict[str, list[Session]] = {}
    wanted = orjson.dumps(sorted(set(keys))).decode()
    for child in tx.each(Session, "sessions_newest_children", keys=wanted, limit=limit):
        found.setdefault(str(child.spawned_by), []).append(child)
    return found


def patch(tx: Tx, key: str, reason: Reason = "patch", **changes: Any) -> Session:
    """Change fields of a session. Raises SessionNotFound or LabelTaken."""
    if fixed := changes.keys() - _PATCHABLE:
        raise BadInput(f"These fields of a session cannot be changed: {', '.join(sorted(fixed))}.")
    tx.lock("session", key)
    before = get(tx, key)
    at = max(now_ms(), before.updated_at_ms)
    after = replace(before, updated_at_ms=at, version=before.version + 1, **changes)
    check_label(tx, after)
    tx.put("session_update", after)
    tx.changes.append(SessionChanged(after, reason))
    return after


def touch(tx: Tx, key: str) -> None:
    """Set the time of last use to now."""
    tx.run("session_touch", key=key, now_ms=now_ms())


def archive(tx: Tx, key: str) -> Session:
    return patch(tx, key, "archive", archived_at_ms=now_ms())


def restore(tx: Tx, key: str) -> Session:
    return patch(tx, key, "restore", archived_at_ms=None)


def reset(tx: Tx, key: str) -> Session:
    """Start a new transcript; the old one stays readable by its id."""
    session = patch(
        tx, key, "reset", session_id=new_id(), system_sent=False, aborted_last_run=False, context_tokens=None
    )
    _begin_transcript(tx, session)
    return session


def freshness(tx: Tx, session: Session) -> tuple[int, int | None]:
    """When the current transcript began, and when a person last wrote into it."""
    rows = tx.rows("transcript_get", session_id=session.session_id)
    last: int | None = tx.value("session_last_input", key=session.key, session_id=session.session_id)
    return (rows[0][2] if rows else session.created_at_ms), last


def delete(tx: Tx, key: str) -> list[str]:
    """Delete a session with its transcripts, turns and deliveries; its usage stays.

    The entries can no longer be read and are removed by `entries.purge`: there may be very many of them.
    Returns the ids of its transcripts. The runner learns from the changes that open turns are gone.
    """
    tx.lock("session", key)
    session = get(tx, key)
    ids = [row[0] for row in tx.rows("transcripts_of", key=key)]
    drop_transcripts(tx, ids)
    for turn in turns.open_of(tx, key):
        gone = replace(turn, status="ended", outcome="cancelled", error="The session was deleted.")
        tx.changes.append(TurnChanged(gone))
    for query in (
        "turns_delete",
        "deliveries_delete",
        "approvals_delete",
        "exchanges_blank",
        "waits_delete",
        "session_delete",
    ):
        tx.run(query, key=key)
    tx.changes.append(SessionDeleted(key, session.session_id))
    return ids


def drop_transcripts(tx: Tx, session_ids: Iterable[str]) -> int:
    """Delete transcripts. `entries.purge` removes their entries, the mirror their files."""
    wanted, dropped = list(session_ids), 0
    for session_id in wanted:
        tx.lock("transcript", session_id)  # nothing is appended to it any more
        tx.memo.pop(session_id, None)
    for query in ("compactions_remove", "transcripts_purge", "transcripts_unfile", "transcripts_remove"):
        dropped = tx.run(query, ids=orjson.dumps(wanted).decode())
    return dropped


def page(
    tx: Tx,
    *,
    agent_id: str | None = None,
    tree_of: Session | None = None,
    kinds: Sequence[Kind] = (),
    archived: bool = False,
    since_ms: int = 0,
    after: Cursor | None = None,
    limit: int = 100,
) -> list[Session]:
    """Sessions by time of last use, newest first, ties by key; `after` is the last row of the page before.

    Narrowed to an agent, to a session and what it spawned, to kinds. Each of these ways has an index in this
    order, so a page costs the same however many sessions there are. Archived sessions that are narrowed, and
    the tree of a session that was itself spawned, are picked out of a longer list.
    """
    before_ms, after_key = after or _FIRST
    where = {"before_ms": before_ms, "after_key": after_key, "since_ms": since_ms, "limit": limit}
    if archived:
        return _filtered(tx, "sessions_archived", where, agent_id, kinds, tree_of)
    if tree_of is not None:
        where |= {"root_key": tree_of.root_key, "key": tree_of.key, "tree": tree_of.tree}
        return _filtered(tx, "sessions_recent_in_tree", where, agent_id, kinds)
    if agent_id is not None:
        where |= {"agent_id": agent_id}
        return _of_kinds(tx, "sessions_recent_by_agent", kinds or get_args(Kind), where)
    if kinds:
        return _of_kinds(tx, "sessions_recent_by_kind", kinds, where)
    return _loaded(tx, tx.rows("sessions_recent", **where))


def _filtered(
    tx: Tx,
    query: str,
    where: dict[str, Any],
    agent_id: str | None,
    kinds: Sequence[Kind],
    tree_of: Session | None = None,
) -> list[Session]:
    """Read pages until `limit` rows match; these lists are short or rarely used."""
    found: list[Session] = []
    wanted = where["limit"]
    while len(found) < wanted:
        rows = _loaded(tx, tx.rows(query, **where))
        found += [
            s
            for s in rows
            if agent_id in (None, s.agent_id)
            and (not kinds or s.kind in kinds)
            and (tree_of is None or s.key == tree_of.key or tree_of.spawned(s))
        ]
        if len(rows) < wanted:
            break
        where |= {"before_ms": rows[-1].updated_at_ms, "after_key": rows[-1].key}
    return found[:wanted]


def _of_kinds(tx: Tx, query: str, kinds: Sequence[Kind], where: dict[str, Any]) -> list[Session]:
    rows = tx.merged(query, kinds, lambda row: (-row[3], row[0]), **where)
    return _loaded(tx, list(islice(rows, where["limit"])))


def _loaded(tx: Tx, rows: Sequence[_Listed]) -> list[Session]:
    """The sessions of a page. Only those that are not known in this version are read."""
    known_by_id: dict[str, Session] = tx.memo.setdefault("sessions", {})
    found: dict[str, Session] = {}
    unknown: list[str] = []
    for key, session_id, version, _ in rows:
        known = known_by_id.get(session_id)
        if known is not None and known.version == version:
            found[key] = known
        else:
            unknown.append(key)
    if unknown:
        read = by_keys(tx, unknown)
        if len(known_by_id) + len(read) > _MAX_KNOWN:
            known_by_id.clear()
        known_by_id.update((session.session_id, session) for session in read.values())
        found |= read
    return [found[key] for key, *_ in rows]


def _begin_transcript(tx: Tx, session: Session) -> None:
    tx.run(
        "transcript_insert",
        session_id=session.session_id,
        session_key=session.key,
        agent_id=session.agent_id,
        created_at_ms=now_ms(),
    )


def check_label(tx: Tx, session: Session) -> None:
    """Refuse a label that is taken. Raises LabelTaken.

    Only sessions that whoever sets the label knows are compared: the others of the agent, or for a sub-agent
    those with the same requester. So the refusal tells nothing about sessions of others.
    """
    if session.label is None:
        return
    owner = session.spawned_by or session.agent_id
    other = tx.get(Session, "session_by_label", label=session.label, owner=owner)
    if other is not None and other.key != session.key:
        whose = "sub-agent of this session" if session.spawned_by else f"session of agent {owner!r}"
        raise LabelTaken(
            f"Another {whose} already has the label {session.label!r}.", fix="Choose another label."
        )
