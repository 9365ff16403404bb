"""Verbs of retention: find what is old, and remove it.

What a rule finds can be removed later without another look: ended work is never opened again. Sessions are
different, they may be used again at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from hobnob.records import Struct
from hobnob.store import sessions
from hobnob.store.engine.tx import Tx
from hobnob.types import Session

Cursor = tuple[Any, Any]  # time and id of the last row
START: Cursor = (-1, "")


class Rule(Struct, frozen=True):
    """A kind of row with the queries that find and remove it. `removes` run in order; the last one counts."""

    name: str
    due: str
    removes: tuple[str, ...]


TURNS = Rule("turns", "turns_due", ("turns_remove",))
EXCHANGES = Rule("exchanges", "exchanges_due", ("exchanges_remove",))
DELIVERIES = Rule("deliveries", "deliveries_due", ("deliveries_remove",))
APPROVALS = Rule("approvals", "approvals_due", ("approvals_remove",))
INBOX = Rule("chatMessages", "inbox_due", ("inbox_remove",))
USAGE = Rule("usageRows", "usage_due", ("usage_add_up", "usage_remove"))
WAITS = Rule("waits", "waits_due", ("waits_remove",))
IDEMPOTENCY_KEYS = Rule("idempotencyKeys", "idempotency_due", ("idempotency_remove",))
TRANSCRIPTS = Rule("transcripts", "transcripts_due", ())  # removed by `sessions.drop_transcripts`
JOB_RUNS = Rule("jobRuns", "job_runs_due", ("job_runs_remove",))
JOB_TRANSCRIPTS = Rule("jobTranscripts", "job_transcripts_due", ())


def due(
    tx: Tx, rule: Rule, before: int | str, after: Cursor, *, limit: int
) -> tuple[list[Any], Cursor | None]:
    """The ids of rows to remove among the next old ones, and where to go on; None at the end."""
    time, last_id = after
    rows = tx.rows(rule.due, before=before, after_time=time, after_id=last_id, limit=limit)
    ids = [row_id for _, row_id, removable in rows if removable]
    return ids, (rows[-1][0], rows[-1][1]) if len(rows) == limit else None


def forget_files(tx: Tx) -> None:
    """Forget which files of transcripts are to be deleted: there are none."""
    tx.run("removals_forget")


def remove(tx: Tx, rule: Rule, ids: Sequence[Any]) -> int:
    """Remove rows that were due. Returns how many there were."""
    if not rule.removes:
        return sessions.drop_transcripts(tx, ids)
    tx.lock("retention", rule.name)  # else two that run at once would each add up the same usage
    wanted, removed = orjson.dumps(list(ids)).decode(), 0
    for query in rule.removes:
        removed = tx.run(query, ids=wanted)
    return removed


def idle_sessions(
    tx: Tx, until_ms: int, after: Cursor, *, archived: bool, limit: int
) -> tuple[list[Session], Cursor | None]:
    """The next listed or archived sessions, the longest unused first, and where to go on."""
    time, key = after
    query = "sessions_idle_archived" if archived else "sessions_idle"
    found = tx.all(Session, query, until_ms=until_ms, after_time=time, after_id=key, limit=limit)
    return found, (found[-1].updated_at_ms, found[-1].key) if len(found) == limit else None


def first_beyond(tx: Tx, count: int, *, archived: bool) -> tuple[int, str] | None:
    """Time of last use and key of the first session beyond the `count` most recently used ones."""
    rows = tx.rows("sessions_beyond_archived" if archived else "sessions_beyond", count=count)
    return (rows[0][0], rows[0][1]) if rows else None


def in_use(tx: Tx, session_key: str) -> bool:
    """Whether a session has open work, or children that are not archived."""
    return bool(tx.value("session_in_use", key=session_key))
