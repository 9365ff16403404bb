"""Verbs on transcripts. Transcripts are append-only: no verb changes or deletes a single entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast, get_args

import orjson

from hobnob.errors import BadInput, SessionNotFound
from hobnob.events import EntryAppended
from hobnob.records import Struct, asdict
from hobnob.store.engine.tx import Tx
from hobnob.types import Entry, Role, Session, now_ms, text_of

INDEX_STEP = 16
PURGE_STEP = 100
LAST = 2**62  # beyond every sequence number
_ROLES = frozenset(get_args(Role))


Line = tuple[int, Role, str]  # an entry for display: sequence number, role, message as JSON


class Compaction(Struct, frozen=True):
    """The next compaction of a transcript, as far as it is done.

    `covered_from`: the first message that no summary covers yet; with another one, it is another compaction.
    `flush`: how the memory flush before it went. `done_to`: the last message that `summary` covers.
    """

    covered_from: int
    flush: str | None = None
    focus: str = ""
    done_to: int | None = None
    summary: str = ""
    fields: str = "{}"


class Hit(Struct, frozen=True):
    """An entry a search found, with its session."""

    session_key: str
    entry: Entry


def append(tx: Tx, session_id: str, message: dict[str, Any], *, turn_id: str | None = None) -> Entry:
    """Append a message to a transcript. Returns the entry with its sequence number."""
    if message.get("role") not in _ROLES or not isinstance(message.get("content"), str | list):
        raise BadInput("A message needs a role (user, assistant or toolResult) and content (text or parts).")
    number, last, session_key = tx.memo.get(session_id) or _locked_end(tx, session_id)
    entry = Entry(
        session_id=session_id,
        seq=last + 1,
        role=message["role"],
        turn_id=turn_id,
        body=orjson.dumps(message).decode(),
        created_at_ms=now_ms(),
    )
    tx.run("entry_append", number, entry.seq, entry.role, turn_id, entry.body, entry.created_at_ms)
    tx.memo[session_id] = number, entry.seq, session_key
    tx.changes.append(EntryAppended(session_key, entry))
    return entry


def last_seq(tx: Tx, session_id: str) -> int:
    return _end(tx, session_id)[1]


def _end(tx: Tx, session_id: str) -> tuple[int, int, str]:
    """The number of a transcript, its last sequence number, and its session key."""
    rows = tx.rows("transcript_end", session_id=session_id)
    if not rows:
        raise SessionNotFound(f"There is no transcript {session_id}.")
    return cast(tuple[int, int, str], rows[0])


def _locked_end(tx: Tx, session_id: str) -> tuple[int, int, str]:
    tx.lock("transcript", session_id)  # the next sequence number is taken once
    return _end(tx, session_id)


def history(tx: Tx, session_id: str, *, before: int = LAST, limit: int = 200) -> list[Entry]:
    """The newest entries before a sequence number, oldest first."""
    return tx.all(Entry, "entries_before", session_id=session_id, before=before, limit=limit)[::-1]


def lines(
    tx: Tx, session_id: str, *, before: int = LAST, limit: int = 200, tools: bool = True
) -> Iterator[Line]:
    """Like `history`, newest first, one at a time, with only the columns for display: a third of the work."""
    query = "lines_before" if tools else "lines_before_without_tools"
    return cast(Iterator[Line], tx.each_row(query, session_id=session_id, before=before, limit=limit))


def last_lines(tx: Tx, session_ids: Iterable[str], limit: int) -> dict[str, list[Line]]:
    """The newest messages of several transcripts without tool results, newest first, at most `limit` each."""
    found: dict[str, list[Line]] = {}
    wanted = orjson.dumps(sorted(set(session_ids))).decode()
    for session_id, seq, role, body in tx.each_row("lines_last_of_any", ids=wanted, limit=limit):
        found.setdefault(session_id, []).append((seq, role, body))
    return found


def count(tx: Tx, session_id: str, *, before: int = LAST, limit: int = 200, tools: bool = True) -> int:
    """How many `lines` there are."""
    query = "lines_count" if tools else "lines_count_without_tools"
    return int(tx.value(query, session_id=session_id, before=before, limit=limit))


def after(tx: Tx, session_id: str, seq: int, *, limit: int = 1000) -> list[Entry]:
    """The entries after a sequence number, oldest first."""
    return tx.all(Entry, "entries_after", session_id=session_id, after=seq, limit=limit)


def lines_after(tx: Tx, session_id: str, seq: int, *, before: int, limit: int) -> Iterator[Line]:
    """The entries after one sequence number and before another, oldest first, one at a time."""
    page = {"after": seq, "before": before, "limit": limit}
    return cast(Iterator[Line], tx.each_row("lines_after", session_id=session_id, **page))


def compaction(tx: Tx, session_id: str) -> Compaction | None:
    rows = tx.rows("compaction_get", session_id=session_id)
    return Compaction(*rows[0]) if rows else None


def set_compaction(tx: Tx, session_id: str, state: Compaction | None) -> None:
    """Save how far the next compaction is; None when its entry was appended."""
    if state is None:
        tx.run("compaction_done", session_id=session_id)
    else:
        tx.run("compaction_set", session_id=session_id, **asdict(state))


def search(
    tx: Tx,
    text: str,
    *,
    agent_id: str | None = None,
    tree_of: Session | None = None,
    session_key: str | None = None,
    limit: int = 10,
) -> list[Hit]:
    """Entries with all the words, best match first. Finds what `index` has indexed."""
    words = tx.words(text)
    if not words:
        return []
    rows = tx.rows(
        "words_search",
        words=words,
        agent_id=agent_id,
        key=tree_of.key if tree_of else session_key,
        tree=tree_of.tree if tree_of else None,
        limit=limit,
    )
    return [Hit(row[-2], from_row(row[:-2])) for row in rows]


def index(tx: Tx, *, step: int = INDEX_STEP) -> int:
    """Index the next entries. Returns how many; 0 means the index is up to date."""
    tx.lock("follower", "words")
    position = tx.value("follower_get", name="words") or 0
    rows = tx.rows("entries_from_position", position=position, limit=step)
    for at, *row in rows:
        if text := _words(from_row(row)):
            place = {"session_id": row[0], "seq": row[1]}
            tx.run("words_insert", position=at, text=tx.index_words(text), **place)
    if rows:
        tx.run("follower_set", name="words", position=rows[-1][0])
    return len(rows)


def purge(tx: Tx, *, step: int = PURGE_STEP) -> bool:
    """Remove the next entries of deleted transcripts, also from the index. False when none are left."""
    rows = tx.rows("purge_next")
    if not rows:
        return False
    transcript, indexed = rows[0]
    found = tx.rows("purge_entries", transcript=transcript, limit=step)
    for position, *row in found:
        if position <= indexed and (text := _words(from_row(("", *row)))):
            tx.run("words_delete", position=position, text=text)
    if found:
        tx.run("purge_delete", transcript=transcript, seq=found[-1][1])
    if len(found) < step:
        tx.run("purge_done", transcript=transcript)
    return True


def _words(entry: Entry) -> str:
    return "" if entry.role == "toolResult" else text_of(entry.message)


def from_row(row: Any) -> Entry:
    return Entry(*row)
