"""The log of exchanges: who sent what to whom, how it ended, and what was refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from hobnob import keys, policy
from hobnob.config import Settings
from hobnob.errors import NotAllowed, NotFound
from hobnob.policy import Caller
from hobnob.records import Struct
from hobnob.requests import LIST_MAX
from hobnob.sessions import presentation
from hobnob.sessions.presentation import Row
from hobnob.store import Tx, deliveries, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.types import Exchange, Session, Turn, now_ms

TIMELINE_MAX = 100
TRAFFIC_PAIRS = 500
REFUSALS_KEPT = 200
REFUSALS_NOTED = ("deadlock", "hop_limit")
_STEPS = ("primary", "reply", "announce")


def exchange(tx: Tx, settings: Settings, caller: Caller, exchange_id: str) -> Row:
    """One exchange with its steps and its delivery. Raises NotFound."""
    found = exchange_rows.find(tx, exchange_id)
    if found is None or not _readable(tx, settings, caller, [found]):
        raise NotFound(f"There is no exchange with the id {exchange_id!r}.")
    steps = [turn for turn in exchange_rows.turns(tx, exchange_id) if turn.step in _STEPS]
    row = presentation.exchange_row(found) | {"steps": [presentation.step_row(turn) for turn in steps]}
    if sent := deliveries.of_exchange(tx, exchange_id):
        last = sent[-1]
        row["delivery"] = {
            "state": last.state,
            "channel": last.channel,
            "to": last.recipient,
            "attempts": last.attempts,
        } | ({"error": last.error} if last.error else {})
    return row


def exchanges(tx: Tx, settings: Settings, caller: Caller, *, limit: int, cursor: str | None) -> Row:
    """A page of exchanges, newest first."""
    page, next_cursor = _page(tx, settings, caller, min(max(limit, 1), LIST_MAX), cursor)
    return {"count": len(page), "exchanges": [presentation.exchange_row(each) for each in page]} | next_cursor


def timeline(tx: Tx, settings: Settings, caller: Caller, *, limit: int, cursor: str | None) -> Row:
    """A page of exchanges with their steps, positions in the transcripts, and cost."""
    page, next_cursor = _page(tx, settings, caller, min(max(limit, 1), TIMELINE_MAX), cursor)
    steps = exchange_rows.turns_of_any(tx, [each.exchange_id for each in page])
    callers = turns.by_ids(tx, [each.caller_turn_id for each in page if each.caller_turn_id])
    shown = [
        presentation.exchange_row(each)
        | _steps(steps.get(each.exchange_id, []), callers.get(each.caller_turn_id or ""))
        for each in page
    ]
    max_hops = settings.session.agent_to_agent.max_hops
    return {"count": len(shown), "exchanges": shown} | next_cursor | {"maxHops": max_hops}


def traffic(tx: Tx, settings: Settings, caller: Caller, refusals: list[Refusal], since_ms: int) -> Row:
    """Totals per pair of sessions since a time, and the refusals since then."""
    totals = exchange_rows.traffic(tx, since_ms, limit=TRAFFIC_PAIRS)
    recent = [each for each in reversed(refusals) if each.at_ms >= since_ms]
    mentioned = {key for row in totals for key in row[:2]} | {each.session_key for each in recent}
    found = session_rows.by_keys(tx, mentioned)
    readable = {key for key, session in found.items() if _may_read(settings, caller, session)}
    return {
        "since": since_ms,
        "maxHops": settings.session.agent_to_agent.max_hops,
        "edges": [
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
            for requester, target, kind, count, messages, tokens, cost, failed, last in totals
            if requester in readable and target in readable
        ],
        "refusals": [refusal_row(each) for each in recent if each.session_key in readable],
    }


def refusal_row(each: Refusal) -> Row:
    row: Row = {"sessionKey": each.session_key, "code": each.rule, "why": each.why, "at": each.at_ms}
    return row | ({"fix": each.fix} if each.fix else {})


def _page(
    tx: Tx, settings: Settings, caller: Caller, limit: int, cursor: str | None
) -> tuple[list[Exchange], Row]:
    """The readable exchanges of a page, and the cursor of the next one."""
    after = presentation.decode_cursor(cursor, int, str) if cursor else None
    page = exchange_rows.page(tx, after=(after[0], after[1]) if after else None, limit=limit)
    more: Row = {}
    if len(page) == limit:
        more["nextCursor"] = presentation.encode_cursor(page[-1].created_at_ms, page[-1].exchange_id)
    return _readable(tx, settings, caller, page), more


def _readable(tx: Tx, settings: Settings, caller: Caller, exchanges: Iterable[Exchange]) -> list[Exchange]:
    """Exchanges of which the caller may read the history of both sessions."""
    page = list(exchanges)
    sides = {e.exchange_id: [key for key in (e.requester_key, e.target_key) if key] for e in page}
    found = session_rows.by_keys(tx, [key for both in sides.values() for key in both])

    def may_read(key: str) -> bool:  # a deleted session is judged by its key
        return _may_read(settings, caller, found.get(key) or Session.of(keys.parse(key)))

    return [each for each in page if all(map(may_read, sides[each.exchange_id]))]


def _may_read(settings: Settings, caller: Caller, session: Session) -> bool:
    return policy.may(settings, caller, "history", session).allowed


def _steps(own: list[Turn], caller: Turn | None) -> Row:
    row: Row = {
        "steps": [presentation.step_row(turn) for turn in own if turn.step in _STEPS],
        "tokens": sum(turn.input_tokens + turn.output_tokens for turn in own),
        "costUsd": round(sum(turn.cost_usd for turn in own), 6),
    }
    if caller is not None:
        # A caller that was still running when the answer arrived had waited for it.
        row["asked"] = _position(caller) | ({"endedAt": caller.ended_at_ms} if caller.ended_at_ms else {})
    if reports := [turn for turn in own if turn.step in ("note", "wake")]:
        row["report"] = _position(reports[-1]) | {"at": reports[-1].accepted_at_ms}
    return row


def _position(turn: Turn) -> Row:
    """Where the input of a turn is in its transcript."""
    position = {"sessionKey": turn.session_key, "sessionId": turn.session_id}
    return position | ({"seq": turn.input_seq} if turn.input_seq else {})


class Refusal(Struct, frozen=True):
    """Something an agent was refused."""

    session_key: str
    verb: str
    rule: str
    why: str
    fix: str | None
    at_ms: int


class Refusals:
    """The latest refusals of this process. Transcripts keep them for good.

    `newest` are those of how agents work together, for the exchange view; `all` is for the ledger of trust.
    """

    def __init__(self) -> None:
        self.newest: deque[Refusal] = deque(maxlen=REFUSALS_KEPT)
        self.all: deque[Refusal] = deque(maxlen=REFUSALS_KEPT)

    @contextmanager
    def noted(self, session_key: str, verb: str) -> Iterator[None]:
        """Record a refusal, and pass it on."""
        try:
            yield
        except NotAllowed as refused:
            refusal = Refusal(session_key, verb, refused.rule, refused.message, refused.fix, now_ms())
            self.all.append(refusal)
            if refused.rule in REFUSALS_NOTED:
                self.newest.append(refusal)
            raise
