"""Verbs on turns: accept, claim, release, end.

A session's turns run one at a time in the order accepted. Each claim raises the turn's fencing number;
whoever holds an older number can no longer write.
"""

from __future__ import annotations

from dataclasses import replace

from hobnob.errors import Fenced
from hobnob.store.tx import TurnChanged, Tx
from hobnob.types import Outcome, Turn, now_ms


def accept(tx: Tx, turn: Turn) -> Turn:
    """Put a turn at the end of its session's queue."""
    last = tx.value("turn_last_position", session_key=turn.session_key)
    turn = replace(turn, position=last + 1)
    tx.put("turn_insert", turn)
    _tell(tx, turn)
    return turn


def get(tx: Tx, turn_id: str) -> Turn | None:
    return tx.get(Turn, "turn_get", turn_id=turn_id)


def open_turns(tx: Tx) -> list[Turn]:
    """Every turn that has not ended, in the order accepted."""
    return tx.all(Turn, "turns_open")


def claim(tx: Tx, session_key: str, claimed_by: str) -> Turn | None:
    """Claim the session's next turn, unless one of its turns is running or none is waiting."""
    head = tx.get(Turn, "turn_head", session_key=session_key)
    if head is None or head.status == "running":
        return None
    tx.run("turn_claim", turn_id=head.turn_id, claimed_by=claimed_by, now_ms=now_ms())
    turn = get(tx, head.turn_id)
    assert turn is not None
    _tell(tx, turn)
    return turn


def release(tx: Tx, turn: Turn, *, crashed: bool = False) -> None:
    """Give a claim back, so that the turn can be claimed again."""
    if not tx.run("turn_release", turn_id=turn.turn_id, claim=turn.claim, crashed=int(crashed)):
        raise Fenced(f"The turn {turn.turn_id} is no longer claimed with number {turn.claim}.")
    _tell(tx, replace(turn, status="queued"))


def end(tx: Tx, turn: Turn, outcome: Outcome, *, reply: str | None = None, error: str | None = None) -> None:
    """Record how a turn ended. Raises Fenced when it ended already or another claim holds it."""
    if not tx.run(
        "turn_end",
        turn_id=turn.turn_id,
        claim=turn.claim,
        outcome=outcome,
        reply=reply,
        error=error,
        now_ms=now_ms(),
    ):
        raise Fenced(f"The turn {turn.turn_id} is no longer claimed with number {turn.claim}.")
    _tell(tx, replace(turn, status="ended"))


def check_claim(tx: Tx, turn: Turn) -> None:
    """Raise Fenced unless this claim still holds the turn. Asked in every transaction of a running turn."""
    if tx.value("turn_holds", turn_id=turn.turn_id, claim=turn.claim) is None:
        raise Fenced(f"The turn {turn.turn_id} is no longer claimed with number {turn.claim}.")


def _tell(tx: Tx, turn: Turn) -> None:
    tx.changes.append(TurnChanged(turn.session_key, turn.turn_id, turn.status))
