"""The state machine of an exchange. Pure functions: no clock, no database, no model.

A send runs a primary turn in the target, then reply turns that alternate and begin with the requester, then
one announce turn in the target, whose text goes to the target's channel. A spawn runs the task in the child,
then one announce turn in the child, whose text goes to the requester; a spawn that is collected or quiet ends
with its task. `after` takes the exchange and the
result of its turn, and returns the new state and the next step. The caller carries out the step in the
transaction that ends the turn.

Values of `end_reason`:

    delivered        the announcement reached the channel
    no_route         there is no channel to send the announcement to
    announce_skip    the announce turn chose to stay silent
    reply_skip       the first turn chose not to answer
    empty            the first turn had no text
    policy           the send policy denies the next turn or the announcement
    failed           a turn failed that the other turns depend on
    cancelled        one of its turns was cancelled
    undelivered      the channel did not accept the announcement
    ambiguous        the channel's receipt was lost: the announcement may have been delivered
    deleted          one of the two sessions was deleted
    expired          nothing happened for too long
    collected        the result of a spawn is kept for the session that collects it
    quiet            the spawn was made without a report

Values of `loop_end`, for the loop of reply turns: `reply_skip`, `max_turns`, `empty`, `failed`, `policy`.
"""

from __future__ import annotations

from typing import Literal

from hobnob import keys
from hobnob.records import Struct, replace
from hobnob.types import DeliveryState, Exchange, ExchangeState, Outcome

REPLY_SKIP = "REPLY_SKIP"
ANNOUNCE_SKIP = "ANNOUNCE_SKIP"
NO_REPLY = "NO_REPLY"  # the silent answer of a turn that nobody asked for
CARRIED_CHARS = 32_000  # longest reply that is passed to another session

# How the final state of a delivery ends its exchange.
_DELIVERED: dict[DeliveryState, tuple[ExchangeState, str]] = {
    "delivered": ("done", "delivered"),
    "failed": ("failed", "undelivered"),
    "ambiguous": ("done", "ambiguous"),
}


class TurnResult(Struct, frozen=True):
    """The result of a turn, as far as an exchange needs it."""

    outcome: Outcome
    text: str = ""
    error: str | None = None

    @property
    def failed(self) -> bool:
        return self.outcome not in ("ok", "no_output")


class NextTurn(Struct, frozen=True):
    """The next step is a turn, in the session of the requester or of the target."""

    step: Literal["reply", "announce"]
    side: Literal["requester", "target"]
    text: str = ""


class Announcement(Struct, frozen=True):
    """The next step is the announcement: to the target's channel for a send, to the requester for a spawn."""

    text: str


NextStep = NextTurn | Announcement | None


def is_skip(text: str) -> bool:
    """Whether a reply consists of a control word only. Both words count at every step."""
    return text.strip() in (REPLY_SKIP, ANNOUNCE_SKIP)


def is_silent(text: str) -> bool:
    """Whether an answer says nothing to people: empty, or a control word only."""
    return not text.strip() or is_skip(text) or text.strip().upper() == NO_REPLY


def reply_text(reply: str | None) -> str:
    """The text of a reply for other sessions: truncated if it is too long, empty for a control word."""
    text = (reply or "").strip()
    if is_skip(text):
        return ""
    if len(text) <= CARRIED_CHARS:
        return text
    left_out = f"{len(text) - CARRIED_CHARS:,} of {len(text):,} characters"
    return f"{text[:CARRIED_CHARS]}\n[… {left_out} left out; sessions_history of that session has more …]"


def after(exchange: Exchange, result: TurnResult) -> tuple[Exchange, NextStep]:
    """The exchange after the turn it waited for has ended, and its next step."""
    if exchange.state != "open":
        return exchange, None
    match exchange.phase:
        case "primary":
            return _after_primary(exchange, result)
        case "reply":
            return _after_reply(exchange, result)
        case "announce":
            return _after_announce(exchange, result)
        case "delivery":
            return exchange, None


def refused(exchange: Exchange) -> tuple[Exchange, NextStep]:
    """The exchange after the policy refused its next turn. A reply loop still ends with an announce turn."""
    if exchange.phase == "reply":
        return _announce(replace(exchange, loop_end="policy"))
    return _ended(exchange, "done", "policy"), None


def delivered(exchange: Exchange, state: DeliveryState) -> Exchange:
    """The exchange after its delivery changed to `state`."""
    return _ended(exchange, *_DELIVERED[state]) if state in _DELIVERED else exchange


def unroutable(exchange: Exchange) -> Exchange:
    return _ended(exchange, "done", "no_route")


def deleted(exchange: Exchange) -> Exchange:
    return _ended(exchange, "failed", "deleted")


def expired(exchange: Exchange) -> Exchange:
    return _ended(exchange, "expired", "expired")


def _after_primary(exchange: Exchange, result: TurnResult) -> tuple[Exchange, NextStep]:
    exchange = replace(exchange, outcome=result.outcome, error=result.error)
    text = reply_text(result.text)
    if exchange.kind == "spawn":
        exchange = replace(exchange, first_reply=text or None, last_reply=text or None)
        if exchange.reports != "announce":
            return _unannounced(exchange, result), None
        if not result.failed and not keys.parse(exchange.target_key).is_external:
            return _announce(exchange)
        if not result.failed and is_skip(result.text):
            return _ended(exchange, "done", "announce_skip"), None
        # No announce turn for a child that failed, was cancelled or timed out: what is known is announced.
        # None for a harness either: asking it again costs as much as a task.
        return _post(exchange, text)
    if result.failed:
        return _ended(exchange, "failed", "cancelled" if result.outcome == "cancelled" else "failed"), None
    if not text:
        return _ended(exchange, "done", "reply_skip" if is_skip(result.text) else "empty"), None
    exchange = replace(exchange, first_reply=text, last_reply=text)
    no_partner = exchange.requester_key in (None, exchange.target_key)
    if no_partner or exchange.max_turns == 0:
        return _announce(exchange)
    return replace(exchange, phase="reply"), NextTurn("reply", "requester", text)


def _unannounced(exchange: Exchange, result: TurnResult) -> Exchange:
    """A spawn that reports to nobody: its result is in the exchange and in its turn."""
    if result.failed:
        return _ended(exchange, "failed", "cancelled" if result.outcome == "cancelled" else "failed")
    return _ended(exchange, "done", "collected" if exchange.reports == "collect" else "quiet")


def _after_reply(exchange: Exchange, result: TurnResult) -> tuple[Exchange, NextStep]:
    done = exchange.turns_done + 1
    exchange = replace(exchange, turns_done=done)
    text = reply_text(result.text)
    if result.outcome == "cancelled":  # the exchange must stop, not continue in the other session
        return _ended(exchange, "failed", "cancelled"), None
    if result.failed:
        return _announce(replace(exchange, loop_end="failed"))
    if not text:
        return _announce(replace(exchange, loop_end="reply_skip" if is_skip(result.text) else "empty"))
    exchange = replace(exchange, last_reply=text)
    if done >= exchange.max_turns:
        return _announce(replace(exchange, loop_end="max_turns"))
    return exchange, NextTurn("reply", "requester" if done % 2 == 0 else "target", text)


def _announce(exchange: Exchange) -> tuple[Exchange, NextStep]:
    return replace(exchange, phase="announce"), NextTurn("announce", "target")


def _after_announce(exchange: Exchange, result: TurnResult) -> tuple[Exchange, NextStep]:
    text = reply_text(result.text)
    if exchange.kind == "spawn" and (result.failed or not result.text.strip()):
        return _post(exchange, exchange.first_reply or "")  # the result counts even without an announcement
    if result.failed:
        return _ended(exchange, "failed", "cancelled" if result.outcome == "cancelled" else "failed"), None
    if not text:
        return _ended(exchange, "done", "announce_skip"), None
    return _post(exchange, text)


def _post(exchange: Exchange, text: str) -> tuple[Exchange, NextStep]:
    return replace(exchange, phase="delivery"), Announcement(text)


def _ended(exchange: Exchange, state: ExchangeState, reason: str) -> Exchange:
    return replace(exchange, state=state, end_reason=reason, turn_id=None)
