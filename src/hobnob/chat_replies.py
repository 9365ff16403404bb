"""What is said in a chat when a turn that came from it has ended. Pure functions."""

from __future__ import annotations

import re

from hobnob.delivery_routes import ReplyAddress
from hobnob.exchanges import is_silent
from hobnob.records import Struct
from hobnob.types import DeliveryKind, Turn

_REASON_CHARS = 300
_REPLY_TAG = re.compile(r"\[\[\s*reply_to(?:_current|:\s*[^\]\n]{0,200})\s*\]\][ \t]?")


class ChatReply(Struct, frozen=True):
    """A message for the chat."""

    text: str
    kind: DeliveryKind


def answer(turn: Turn, address: ReplyAddress) -> ChatReply | None:
    """The answer of an ended turn; None if nothing is to be said.

    Control words are never sent. A failure is told where somebody expects an answer: to an owner with the
    reason, to others without.
    """
    if turn.outcome in ("ok", "no_output"):
        text = spoken(turn.reply or "")
        return ChatReply(text, "reply") if text else None
    if turn.outcome == "cancelled" or not address.owed:
        return None
    partial = spoken(turn.reply or "")
    return ChatReply("\n\n".join(filter(None, (partial, _failure(turn, address)))), "error")


def spoken(reply: str) -> str:
    """The part of a reply that is meant for people: nothing of a control word, no reply tags."""
    if is_silent(reply):
        return ""
    return _REPLY_TAG.sub("", reply).strip()


def _failure(turn: Turn, address: ReplyAddress) -> str:
    if turn.outcome == "timed_out":
        return "⚠️ This took too long and was stopped."
    if not address.to_owner or not turn.error:
        return "⚠️ Something went wrong, and there is no answer. Please try again later."
    reason = " ".join(turn.error.split())
    cut = reason if len(reason) <= _REASON_CHARS else f"{reason[:_REASON_CHARS]}…"
    return f"⚠️ There is no answer: {cut}"
