"""What follows a finished turn of an exchange. Pure: no clock, no database, no model.

A send goes: primary turn in the target, reply-back turns that alternate and begin with the requester, one
announce turn in the target, its text to the target's channel. A spawn goes: the task in the child, one
announce turn in the child, its text to the requester. `after` is given the exchange and how its turn ended,
and says how the exchange now stands and the one thing to do next. Whoever asks does it in the transaction
that ends the turn.

How an exchange can end (`end_reason`):

    delivered        the announcement reached the channel
    no_route         there was an announcement, and no channel to send it to
    announce_skip    the announce turn chose to stay silent
    reply_skip       the first turn chose not to answer
    empty            the first turn said nothing
    policy           the send policy forbids the next turn, or the announcement
    failed           a turn failed that the rest depends on
    cancelled        somebody stopped one of its turns
    undelivered      the channel did not take the announcement
    ambiguous        the channel's receipt was lost: it may have gone out
    deleted          one of the two sessions was deleted
    expired          nothing happened for too long

How the reply-back loop ended (`loop_end`): `reply_skip`, `max_turns`, `empty`, `failed`, `policy`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hobnob import keys
from hobnob.types import DeliveryState, Exchange, ExchangeState, Outcome

REPLY_SKIP = "REPLY_SKIP"
ANNOUNCE_SKIP = "ANNOUNCE_SKIP"
CARRIED_CHARS = 32_000  # of a reply that goes from one session to another

# How a delivery that is over ends its exchange.
_DELIVERED: dict[DeliveryState, tuple[ExchangeState, str]] = {
    "delivered": ("done", "delivered"),
    "failed": ("failed", "undelivered"),
    "ambiguous": ("done", "ambiguous"),
}


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn ended, as far as an exchange cares."""

    outcome: Outcome
    text: str = ""
    error: str | None = None

    @property
    def failed(self) -> bool:
        return self.outcome not in ("ok", "no_output")


@dataclass(frozen=True, slots=True)
class NextTurn:
    """A turn is next, in the session of the requester or of the target."""

    step: Literal["reply", "announce"]
    side: Literal["requester", "target"]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Announcement:
    """The announcement is next: to the target's channel for a send, to the requester for a spawn."""

    text: str


NextStep = NextTurn | Announcement | None


def is_skip(text: str) -> bool:
    """Whether a reply is one of the control words and nothing else. Both words count at every step."""
    return text.strip() in (REPLY_SKIP, ANNOUNCE_SKIP)


def said(reply: str | None) -> str:
    """What a turn said to others: its text, cut where it is too long, and nothing for a control word."""
    text = (reply or "").strip()
    if is_skip(text):
        return ""
    if len(text) <= CARRIED_CHARS:
        return text
    left_out = f"{len(text) - CARRIED_CHARS:,} of {len(text):,} characters"
    return f"{text[:CARRIED_CHARS]}\n[… {left_out} left out; sessions_history of that session has more …]"


def after(exchange: Exchange, ran: TurnResult) -> tuple[Exchange, NextStep]:
    """How the exchange stands once the turn it waited for has ended, and what is next."""
    if exchange.state != "open":
        return exchange, None
    match exchange.phase:
        case "primary":
            return _after_primary(exchange, ran)
        case "reply":
            return _after_reply(exchange, ran)
        case "announce":
            return _after_announce(exchange, ran)
        case "delivery":
            return exchange, None


def refused(exchange: Exchange) -> tuple[Exchange, NextStep]:
    """The session whose turn was next takes none. A loop ends with that and is announced all the same."""
    if exchange.phase == "reply":
        return _announce(replace(exchange, loop_end="policy"))
    return _ended(exchange, "done", "policy"), None


def delivered(exchange: Exchange, state: DeliveryState) -> Exchange:
    """How the exchange stands once its delivery is over."""
    return _ended(exchange, *_DELIVERED[state]) if state in _DELIVERED else exchange


def unroutable(exchange: Exchange) -> Exchange:
    return _ended(exchange, "done", "no_route")


def deleted(exchange: Exchange) -> Exchange:
    return _ended(exchange, "failed", "deleted")


def expired(exchange: Exchange) -> Exchange:
    return _ended(exchange, "expired", "expired")


def _after_primary(exchange: Exchange, ran: TurnResult) -> tuple[Exchange, NextStep]:
    exchange = replace(exchange, outcome=ran.outcome, error=ran.error, wait_until_ms=0)
    text = said(ran.text)
    if exchange.kind == "spawn":
        exchange = replace(exchange, first_reply=text or None, last_reply=text or None)
        if not ran.failed and not keys.parse(exchange.target_key).is_external:
            return _announce(exchange)
        if not ran.failed and is_skip(ran.text):
            return _ended(exchange, "done", "announce_skip"), None
        # Whoever failed, was stopped or ran out of time is not asked again: what is known is announced.
        # Nor is a harness: to ask it for the same once more costs as much as a task.
        return _post(exchange, text)
    if ran.failed:
        return _ended(exchange, "failed", "cancelled" if ran.outcome == "cancelled" else "failed"), None
    if not text:
        return _ended(exchange, "done", "reply_skip" if is_skip(ran.text) else "empty"), None
    exchange = replace(exchange, first_reply=text, last_reply=text)
    alone = exchange.requester_key in (None, exchange.target_key)
    if alone or exchange.max_turns == 0:
        return _announce(exchange)
    return replace(exchange, phase="reply"), NextTurn("reply", "requester", text)


def _after_reply(exchange: Exchange, ran: TurnResult) -> tuple[Exchange, NextStep]:
    done = exchange.turns_done + 1
    exchange = replace(exchange, turns_done=done)
    text = said(ran.text)
    if ran.outcome == "cancelled":  # somebody wants it to stop, not to go on elsewhere
        return _ended(exchange, "failed", "cancelled"), None
    if ran.failed:
        return _announce(replace(exchange, loop_end="failed"))
    if not text:
        return _announce(replace(exchange, loop_end="reply_skip" if is_skip(ran.text) else "empty"))
    exchange = replace(exchange, last_reply=text)
    if done >= exchange.max_turns:
        return _announce(replace(exchange, loop_end="max_turns"))
    return exchange, NextTurn("reply", "requester" if done % 2 == 0 else "target", text)


def _announce(exchange: Exchange) -> tuple[Exchange, NextStep]:
    return replace(exchange, phase="announce"), NextTurn("announce", "target")


def _after_announce(exchange: Exchange, ran: TurnResult) -> tuple[Exchange, NextStep]:
    text = said(ran.text)
    if exchange.kind == "spawn" and (ran.failed or not ran.text.strip()):
        return _post(exchange, exchange.first_reply or "")  # a result is not lost with its announcement
    if ran.failed:
        return _ended(exchange, "failed", "cancelled" if ran.outcome == "cancelled" else "failed"), None
    if not text:
        return _ended(exchange, "done", "announce_skip"), None
    return _post(exchange, text)


def _post(exchange: Exchange, text: str) -> tuple[Exchange, NextStep]:
    return replace(exchange, phase="delivery"), Announcement(text)


def _ended(exchange: Exchange, state: ExchangeState, why: str) -> Exchange:
    return replace(exchange, state=state, end_reason=why, turn_id=None, wait_until_ms=0)
