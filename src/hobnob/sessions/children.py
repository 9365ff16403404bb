"""A session and what it spawned, looked at and changed together, each in one transaction."""

from __future__ import annotations

from dataclasses import replace

from hobnob.effects import Effects
from hobnob.store import Tx, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.types import Exchange, Session, Turn

_MOST = 1000


def spawns(tx: Tx, root: Session) -> list[Exchange]:
    """The spawns of a session and of what it spawned, newest first."""
    tree = session_rows.page(tx, tree_of=root, limit=_MOST)
    found = [e for each in tree for e in exchange_rows.spawned_by(tx, each.key)]
    return sorted(found, key=lambda e: e.created_at_ms, reverse=True)


def wake_on_completion(tx: Tx, session: Session) -> int:
    """Give the session a turn when a child of it is done. Returns how many are under way."""
    spawned = exchange_rows.spawned_by(tx, session.key)
    under_way = [e for e in spawned if e.state == "open" and e.phase in ("primary", "announce")]
    for exchange in under_way:
        exchange_rows.save(tx, replace(exchange, on_complete="wake"))
    return len(under_way)


def cancel(tx: Tx, effects: Effects, root: Session) -> list[Turn]:
    """End what is under way in the tree. What is left to report within it wakes nobody in it."""
    tree = session_rows.page(tx, tree_of=root, limit=_MOST)
    for session in tree:
        for exchange in exchange_rows.spawned_by(tx, session.key):
            if exchange.state == "open" and exchange.on_complete == "wake":
                exchange_rows.save(tx, replace(exchange, on_complete="post"))
    under_way = [turn for session in tree for turn in turns.open_of(tx, session.key)]
    return [effects.abort(tx, turn.turn_id, "cancelled") for turn in under_way]
