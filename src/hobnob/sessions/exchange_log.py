"""Who talks to whom: exchanges with their steps for a timeline, and what they add up to for a graph."""

from __future__ import annotations

from hobnob import policy
from hobnob.config import Settings
from hobnob.policy import Caller
from hobnob.sessions import presentation, queries
from hobnob.sessions.presentation import Row
from hobnob.sessions.refusals import Refusal
from hobnob.store import Tx, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.types import Exchange, Turn

MOST = 100
EDGES = 500
_STEPS = ("primary", "reply", "announce")


def timeline(tx: Tx, settings: Settings, caller: Caller, *, limit: int, cursor: str | None) -> Row:
    """Exchanges, newest first, each with its steps, where they stand in the transcripts, and what it cost."""
    page = queries.exchanges(tx, settings, caller, limit=min(limit, MOST), cursor=cursor)
    for row in page["exchanges"]:
        row |= _steps(tx, exchange_rows.get(tx, row["id"]))
    return page | {"maxHops": settings.session.agent_to_agent.max_hops}


def _steps(tx: Tx, exchange: Exchange) -> Row:
    own = exchange_rows.turns(tx, exchange.exchange_id)
    found: Row = {
        "steps": [presentation.step_row(turn) for turn in own if turn.step in _STEPS],
        "tokens": sum(turn.input_tokens + turn.output_tokens for turn in own),
        "costUsd": round(sum(turn.cost_usd for turn in own), 6),
    }
    if exchange.caller_turn_id and (caller := turns.find(tx, exchange.caller_turn_id)):
        # Who was still at it when the answer came had waited for it.
        found["asked"] = _place(caller) | ({"endedAt": caller.ended_at_ms} if caller.ended_at_ms else {})
    if reports := [turn for turn in own if turn.step in ("note", "wake")]:
        found["report"] = _place(reports[-1]) | {"at": reports[-1].accepted_at_ms}
    return found


def _place(turn: Turn) -> Row:
    place = {"sessionKey": turn.session_key, "sessionId": turn.session_id}
    return place | ({"seq": turn.input_seq} if turn.input_seq else {})


def edges(tx: Tx, settings: Settings, caller: Caller, since_ms: int) -> list[Row]:
    """For each pair of sessions that had an exchange since then: how many messages, at what cost."""
    found = []
    for requester, target, kind, count, messages, tokens, cost, failed, last in exchange_rows.traffic(
        tx, since_ms, limit=EDGES
    ):
        if not all(_may_read(tx, settings, caller, key) for key in (requester, target)):
            continue
        found.append(
            {
                "from": requester,
                "to": target,
                "kind": kind,
                "exchanges": count,
                "messages": messages,
                "tokens": int(tokens),
                "costUsd": round(cost, 6),
                "failed": failed,
                "lastAt": last,
            }
        )
    return found


def refused(tx: Tx, settings: Settings, caller: Caller, newest: list[Refusal], since_ms: int) -> list[Row]:
    """Which of the refusals the caller may know of, newest first."""
    return [
        {"sessionKey": each.session_key, "code": each.rule, "why": each.why, "at": each.at_ms}
        | ({"fix": each.fix} if each.fix else {})
        for each in reversed(newest)
        if each.at_ms >= since_ms and _may_read(tx, settings, caller, each.session_key)
    ]


def _may_read(tx: Tx, settings: Settings, caller: Caller, key: str) -> bool:
    session = session_rows.find(tx, key)
    return session is not None and policy.may(settings, caller, "history", session).allowed
