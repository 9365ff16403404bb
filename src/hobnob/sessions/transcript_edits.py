"""Changes to a transcript that are no turns: a line put into it, and a shorter one in its place."""

from __future__ import annotations

from dataclasses import dataclass

from hobnob.errors import Conflict
from hobnob.store import Tx, entries, turns
from hobnob.store import sessions as session_rows
from hobnob.types import Entry, Session, now_ms

_NO_COST = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0}


@dataclass(frozen=True, slots=True)
class Compacted:
    """What became of a transcript: the session, how much of it was kept, and where all of it still is."""

    session: Session
    kept: int
    archived: str | None


def inject(tx: Tx, session: Session, text: str, label: str | None) -> Entry:
    """Put a line into the transcript as if the agent had said it. Nobody is asked and nothing runs."""
    words = f"[{label}]\n\n{text}" if label else text
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": words}],
        "provider": "hobnob",
        "model": "injected",
        "usage": _NO_COST,
        "stopReason": "stop",
        "timestamp": now_ms(),
    }
    session_rows.touch(tx, session.key)
    return entries.append(tx, session.session_id, message)


def compact(tx: Tx, session: Session, keep: int) -> Compacted:
    """Begin a new transcript with the last messages of this one, which stays readable by its id."""
    if turns.open_of(tx, session.key):
        raise Conflict(
            f"The session {session.key} has a turn running or waiting.", fix="Wait for it, or stop it first."
        )
    if entries.last_seq(tx, session.session_id) <= keep:
        return Compacted(session, entries.last_seq(tx, session.session_id), None)
    recent = entries.history(tx, session.session_id, limit=keep)
    start = next((i for i, entry in enumerate(recent) if entry.role == "user"), 0)
    fresh = session_rows.reset(tx, session.key)
    for entry in recent[start:]:  # from somebody's input on: a tool result without its call is no use
        entries.append(tx, fresh.session_id, entry.message, turn_id=entry.turn_id)
    return Compacted(fresh, len(recent) - start, session.session_id)
