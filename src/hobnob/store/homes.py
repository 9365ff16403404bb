"""Verbs on the homes of sessions: which gateway has the files of a session, if gateways do not share a disk.

A session gets its home with its first claim (`turns.claim`), and what it spawns has the same.
"""

from __future__ import annotations

from typing import Literal

from hobnob.errors import BadInput, Conflict
from hobnob.events import TurnChanged
from hobnob.store import sessions, turns
from hobnob.store.engine.tx import Tx
from hobnob.types import Session, Turn

HomeState = Literal["here", "elsewhere", "drained", "gone"]


def alive(tx: Tx) -> dict[str, bool]:
    """The names of gateways that run, and whether they are drained."""
    return {name: bool(drained) for name, drained in tx.rows("gateways_alive")}


def state(home: str, own: str, running: dict[str, bool]) -> HomeState:
    """Where a home is, seen from the gateway with the name `own`; gone if no gateway with its name runs."""
    if running.get(home):
        return "drained"
    if home == own:
        return "here"
    return "elsewhere" if home in running else "gone"


def elsewhere(tx: Tx, session_key: str, own: str) -> str | None:
    """The home of a session if it is another gateway than `own`."""
    home: str | None = tx.value("session_home", key=session_key)
    return home if home != own else None


def settle(tx: Tx, session_key: str, home: str) -> None:
    """Give a session its home, unless it has one: files of it were stored there before its first turn."""
    tx.run("session_settle", key=session_key, home=home)


def why_waiting(tx: Tx, turn: Turn, own: str) -> str | None:
    """Why no gateway runs a queued turn, and what to do; None if one will."""
    session = sessions.find(tx, turn.session_key) if turn.status == "queued" else None
    if session is None or session.home is None:
        return None
    where = state(session.home, own, alive(tx))
    if where in ("here", "elsewhere"):
        return None
    why, do = "which does not run", "Start that gateway"
    if where == "drained":
        why, do = "which is drained", f"Let it start turns again: hobnob nodes drain {session.home} --off"
    return (
        f"It waits: the files of {session.key} are on the gateway {session.home}, {why}. {do}, or move the"
        f" session to another one: hobnob sessions move {session.key} NAME"
    )


def no_homes() -> BadInput:
    return BadInput(
        "Sessions have no home here: every gateway can run them.",
        fix='Homes are for several gateways on PostgreSQL with `store.files: "local"`.',
    )


def move(tx: Tx, session: Session, home: str | None, *, force: bool = False) -> Session:
    """Give a session another home, and with it what it spawned. None: the next gateway that runs it.

    Raises Conflict while one of them runs, and BadInput if no gateway has the name, unless with `force`.
    """
    session = sessions.lock(tx, session)
    running = alive(tx)
    if home is not None and home not in running and not force:
        names = ", ".join(sorted(running)) or "none"
        raise BadInput(
            f"No gateway with the name {home!r} runs.",
            fix=f"Those that run: {names}. With `force` (--force) it moves to one that starts later.",
        )
    moved = sessions.patch(tx, session.key, home=home)
    tree = {"root_key": session.root_key, "tree": session.tree}
    tx.run("sessions_move", home=home, from_home=session.home, **tree)
    # After the update: its rows are locked now, so that no turn is claimed from here on.
    if busy := tx.value("turn_running_in_tree", key=session.key, **tree):
        raise Conflict(
            f"A turn of {busy} runs.", fix="Wait for its end, or stop it with sessions.abort, then move it."
        )
    if (waiting := turns.next_of(tx, session.key)) is not None:
        tx.changes.append(TurnChanged(waiting))  # it may be for another gateway now
    return moved
