"""Verbs on turns: accept, claim, absorb, release, end.

The turns of a session run one at a time, in the order accepted. Each claim raises the turn's fencing number;
the holder of an older number can no longer write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime

import orjson

from hobnob.errors import Fenced, NotFound, SessionNotFound
from hobnob.events import TurnChanged
from hobnob.records import replace
from hobnob.store import entries
from hobnob.store.engine.tx import Tx
from hobnob.types import Entry, Outcome, QueueMode, Turn, TurnStatus, now_ms

MAX_CRASHES = 2

# The session status after its last turn.
_STATUS: dict[Outcome, str] = {
    "ok": "done",
    "no_output": "done",
    "timed_out": "timeout",
    "failed": "failed",
    "lost": "failed",
    "cancelled": "killed",
}


def accept(tx: Tx, turn: Turn) -> Turn:
    """Put a turn at the end of its session's queue. Raises SessionNotFound when the session is gone."""
    if not tx.lock("session", turn.session_key):
        raise SessionNotFound(f"There is no session {turn.session_key}.")
    last = tx.value("turn_last_position", session_key=turn.session_key)
    turn = replace(turn, position=last + 1)
    tx.put("turn_insert", turn)
    tx.run("session_touch", key=turn.session_key, now_ms=now_ms())
    _changed(tx, turn)
    return turn


def find(tx: Tx, turn_id: str) -> Turn | None:
    return tx.get(Turn, "turn_get", turn_id=turn_id)


def get(tx: Tx, turn_id: str) -> Turn:
    turn = find(tx, turn_id)
    if turn is None:
        raise not_found(turn_id)
    return turn


def not_found(turn_id: str) -> NotFound:
    """The same for a run that never was and for one that was removed."""
    return NotFound(
        f"There is no run {turn_id}.",
        fix="Ended runs are removed after session.maintenance.turnRetention; transcripts stay longer.",
    )


def by_ids(tx: Tx, turn_ids: Iterable[str]) -> dict[str, Turn]:
    """The turns with these ids that exist, by id."""
    wanted = orjson.dumps(sorted(set(turn_ids))).decode()
    return {turn.turn_id: turn for turn in tx.all(Turn, "turns_by_ids", ids=wanted)}


def count_open(tx: Tx) -> list[tuple[object, ...]]:
    """Rows (pool, status, number) of turns that have not ended."""
    return tx.rows("turns_counted")


def count_open_of(tx: Tx, session_keys: Iterable[str]) -> dict[str, int]:
    """How many turns of each of these sessions have not ended; sessions without any are left out."""
    return dict(tx.rows("turns_open_counted", keys=orjson.dumps(sorted(set(session_keys))).decode()))


def open_turns(tx: Tx) -> list[Turn]:
    """Every turn that has not ended, in the order accepted."""
    return tx.all(Turn, "turns_open")


def open_of(tx: Tx, session_key: str) -> list[Turn]:
    """Every turn of a session that has not ended, in the order accepted."""
    return tx.all(Turn, "turns_open_of", session_key=session_key)


def open_of_any(tx: Tx, session_keys: Iterable[str]) -> list[Turn]:
    """Every turn of these sessions that has not ended, per session in the order accepted."""
    return tx.all(Turn, "turns_open_of_any", keys=orjson.dumps(sorted(set(session_keys))).decode())


def running(tx: Tx, session_key: str) -> Turn | None:
    """The running turn of a session, if any."""
    head = tx.get(Turn, "turn_head", session_key=session_key)
    return head if head is not None and head.status == "running" else None


def claim(
    tx: Tx, session_key: str, claimed_by: str, boot_id: str | None = None, *, home: str | None = None
) -> Turn | None:
    """Claim the session's next turn, unless one of its turns is running or none is queued.

    The first claim of a turn appends its input to the transcript, and with queue mode `collect` the input of
    the turns queued behind it. `home` is that of sessions without one, and a session with another home is
    left alone.
    """
    tx.lock("session", session_key)
    head = tx.get(Turn, "turn_head", session_key=session_key)
    if head is None or head.status == "running":
        return None
    if home is not None and tx.value("session_home", key=session_key) not in (None, home):
        return None
    first, at = head.input_seq is None, now_ms()
    seq = _append_input(tx, head, head.turn_id).seq if first else head.input_seq
    tx.run(
        "turn_claim",
        turn_id=head.turn_id,
        claimed_by=claimed_by,
        boot_id=boot_id,
        input_seq=seq,
        now_ms=at,
    )
    tx.run("session_running", key=session_key, home=home)
    turn = replace(
        head,
        status="running",
        claim=head.claim + 1,
        claimed_by=claimed_by,
        boot_id=boot_id,
        stopping=False,
        input_seq=seq,
        started_at_ms=head.started_at_ms or at,
    )
    _changed(tx, turn)
    if first and head.queue_mode == "collect":
        absorb(tx, turn, {"collect"})
    return turn


def absorb(tx: Tx, turn: Turn, modes: Collection[QueueMode]) -> list[Entry]:
    """Merge the next queued turns into a running one, as long as their queue mode is one of `modes`.

    A turn whose answer goes to another chat is not merged: people there would get none.
    """
    check_claim(tx, turn)
    taken = []
    answered_in = reply_route(turn)
    for waiting in tx.all(Turn, "turns_queued", session_key=turn.session_key):
        if waiting.queue_mode not in modes or waiting.session_id != turn.session_id:
            break
        if reply_route(waiting) != answered_in:
            break
        entry = _append_input(tx, waiting, turn.turn_id)
        tx.run("turn_merge", turn_id=waiting.turn_id, into=turn.turn_id, input_seq=entry.seq, now_ms=now_ms())
        _changed(tx, replace(waiting, status="ended", merged_into=turn.turn_id))
        taken.append(entry)
    return taken


def finals(tx: Tx, turn_ids: Iterable[str]) -> dict[str, Turn]:
    """The turns by id, each replaced by the one it was merged into. Those that do not exist are left out."""
    asked = {turn_id: turn_id for turn_id in turn_ids}
    known: dict[str, Turn] = {}
    while missing := set(asked.values()) - known.keys():
        found = by_ids(tx, missing)
        if not found:
            break
        known |= found
        asked = {
            turn_id: (known[at].merged_into or at) if at in known else at for turn_id, at in asked.items()
        }
    return {turn_id: known[at] for turn_id, at in asked.items() if at in known}


def ended_of(tx: Tx, turn_ids: Iterable[str]) -> set[str]:
    """Those of the turns that have ended with an outcome of their own."""
    wanted = orjson.dumps(sorted(set(turn_ids))).decode()
    return {row[0] for row in tx.rows("turns_ended_of", ids=wanted)}


def reply_route(turn: Turn) -> object:
    """The chat that the answer of a turn goes to; None for a turn that came from no chat."""
    reply = orjson.loads(turn.options).get("reply") if '"reply"' in turn.options else None
    return reply["route"] if reply else None


def merged(tx: Tx, turn: Turn) -> list[Turn]:
    """The turns that were merged into this one, in the order accepted."""
    place = {"session_key": turn.session_key, "position": turn.position}
    return tx.all(Turn, "turns_merged", turn_id=turn.turn_id, **place)


def release(tx: Tx, turn: Turn, *, crashed: bool = False) -> Turn:
    """Release a claim, so that the turn can be claimed again. A crash counts unless it was being stopped."""
    tx.lock("session", turn.session_key)
    if not tx.run(
        "turn_release", turn_id=turn.turn_id, claim=turn.claim, crashed=int(crashed), now_ms=now_ms()
    ):
        raise _fenced(turn)
    released = get(tx, turn.turn_id)
    _changed(tx, released)
    return released


def progressed(tx: Tx, turn: Turn) -> None:
    """Forget the kills of the gateway during this turn: it has committed a step since."""
    tx.run("turn_progressed", turn_id=turn.turn_id)


def stopping(tx: Tx, claimed_by: str) -> None:
    """Record that the process is being stopped: a kill from now on does not count as a crash of its turns."""
    tx.run("turns_stopping", claimed_by=claimed_by)


def end(
    tx: Tx,
    turn: Turn,
    outcome: Outcome,
    *,
    reply: str | None = None,
    error: str | None = None,
    structured: str | None = None,
    schema_error: str | None = None,
) -> Turn:
    """Record the outcome of a claimed turn. Raises Fenced when the claim no longer holds."""
    turn = replace(turn, structured=structured, schema_error=schema_error)
    return _end(tx, turn, "running", outcome, reply=reply, error=error)


def _end(
    tx: Tx, turn: Turn, status: TurnStatus, outcome: Outcome, *, reply: str | None = None, error: str | None
) -> Turn:
    tx.lock("session", turn.session_key)
    at = now_ms()
    ended = replace(turn, status="ended", outcome=outcome, reply=reply, error=error, ended_at_ms=at)
    if not tx.run(
        "turn_end",
        turn_id=turn.turn_id,
        claim=turn.claim,
        status=status,
        outcome=outcome,
        reply=reply,
        error=error,
        structured=turn.structured,
        schema_error=turn.schema_error,
        now_ms=at,
    ):
        raise _fenced(turn)
    aborted = int(outcome == "cancelled")
    tx.run(
        "session_ended", key=turn.session_key, status=_STATUS[outcome], aborted_last_run=aborted, now_ms=at
    )
    _changed(tx, ended)
    return ended


def answer(tx: Tx, turn: Turn, reply: str) -> Turn:
    """End a queued turn with an answer, without running it or writing to the transcript."""
    at = now_ms()
    known = {"turn_id": turn.turn_id, "claim": turn.claim, "status": "queued", "error": None}
    known |= {"structured": None, "schema_error": None}
    tx.run("turn_end", **known, outcome="ok", reply=reply, now_ms=at)
    ended = replace(turn, status="ended", outcome="ok", reply=reply, ended_at_ms=at)
    _changed(tx, ended)
    return ended


def abort(tx: Tx, turn_id: str, reason: str) -> Turn:
    """Request the end of a turn. A queued turn ends at once; a running one is ended by the runner."""
    if tx.concurrent:
        tx.lock("session", get(tx, turn_id).session_key)
    tx.run("turn_abort", turn_id=turn_id, reason=reason)
    turn = get(tx, turn_id)
    if turn.status == "queued":
        return _end(tx, turn, "queued", "cancelled", error=reason)
    _changed(tx, turn)
    return turn


def add_usage(tx: Tx, turn_id: str, *, input_tokens: int, output_tokens: int, cost_usd: float) -> None:
    """Add a model call to the totals of its turn."""
    tx.run(
        "turn_add_usage",
        turn_id=turn_id,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cost_usd=cost_usd,
    )


def to_run(tx: Tx, *, limit: int, home: str | None = None) -> list[Turn]:
    """Turns to run, in the order accepted; among several gateways only the next of each session.

    With a `home`, only those of sessions that have this one or none.
    """
    return tx.all(Turn, "turns_to_run", limit=limit, home=home)


def next_of(tx: Tx, session_key: str) -> Turn | None:
    """The next turn of a session, unless one of its turns is running."""
    head = tx.get(Turn, "turn_head", session_key=session_key)
    return head if head is not None and head.status == "queued" else None


def left(tx: Tx) -> list[Turn]:
    """The turns that a gateway which is gone was running."""
    return tx.all(Turn, "turns_left")


def recover(tx: Tx, boot_id: str | None = None) -> list[Turn]:
    """Release the claims of gateways that are gone. Returns turns that were ended after too many crashes."""
    ended = []
    for turn in left(tx):
        released = release(tx, turn, crashed=_still_booted(turn.boot_id, boot_id))
        if released.crashes >= MAX_CRASHES:
            error = _crash_report(released)
            ended.append(_end(tx, released, "queued", "failed", error=error))
    return ended


def _still_booted(then: str | None, now: str | None) -> bool:
    """Whether the machine of a gateway that is gone was not restarted: the turn may be what kills gateways.

    Of another machine that is not known, and assumed.
    """
    return then == now or (then or "").rpartition("/")[0] != (now or "").rpartition("/")[0]


def _crash_report(turn: Turn) -> str:
    first, last = (
        f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        for ms in (turn.crashed_at_ms or now_ms(), now_ms())
    )
    return (
        f"Hobnob was killed {turn.crashes} times in a row, or hung, while this turn ran, with no step"
        f" done in between (noticed at {first} and {last}). The turn is not retried; send the message again"
        " to try once more."
    )


def check_claim(tx: Tx, turn: Turn) -> None:
    """Raise Fenced unless the claim still holds. Every transaction of a running turn checks this."""
    tx.lock("session", turn.session_key)
    if tx.value("turn_holds", turn_id=turn.turn_id, claim=turn.claim) is None:
        raise _fenced(turn)


def _append_input(tx: Tx, turn: Turn, under: str) -> Entry:
    return entries.append(tx, turn.session_id, orjson.loads(turn.input), turn_id=under)


def _fenced(turn: Turn) -> Fenced:
    return Fenced(f"The turn {turn.turn_id} is no longer claimed with number {turn.claim}.")


def _changed(tx: Tx, turn: Turn) -> None:
    tx.changes.append(TurnChanged(turn))
