"""The children of a session: list them, wake on their completion, cancel them. Each in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hobnob.effects import Effects
from hobnob.store import Tx, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.types import Exchange, Session, Turn

_MAX_SESSIONS = 1000


def spawns(tx: Tx, root: Session) -> list[Exchange]:
    """The spawns of a session and of its descendants, newest first."""
    return exchange_rows.spawned_by_any(tx, _tree_keys(tx, root))


def wake_on_completion(tx: Tx, session: Session) -> int:
    """Give the session a turn when a child of it is done. Returns how many children are working."""
    working = [
        exchange
        for exchange in exchange_rows.spawned_by(tx, session.key)
        if exchange.state == "open" and exchange.phase in ("primary", "announce")
    ]
    for exchange in working:
        exchange_rows.save(tx, replace(exchange, on_complete="wake"))
    return len(working)


def cancel(tx: Tx, effects: Effects, root: Session) -> Sequence[Turn]:
    """Abort every open turn of the tree. Pending reports inside it become notes and start no turn."""
    tree = _tree_keys(tx, root)
    for exchange in exchange_rows.spawned_by_any(tx, tree):
        if exchange.state == "open" and exchange.on_complete == "wake":
            exchange_rows.save(tx, replace(exchange, on_complete="post"))
    return [effects.abort_turn(tx, turn.turn_id, "cancelled") for turn in turns.open_of_any(tx, tree)]


def _tree_keys(tx: Tx, root: Session) -> list[str]:
    return [session.key for session in session_rows.page(tx, tree_of=root, limit=_MAX_SESSIONS)]
