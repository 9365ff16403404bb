"""Rows of the inbox: from a message and the decision about it to a row, a name and an address. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from hobnob import fixes, routing
from hobnob.chat_types import InboxEvent, InboxState
from hobnob.delivery_routes import DeliveryRoute, ReplyAddress
from hobnob.inbound import Inbound
from hobnob.routing import Decision
from hobnob.types import now_ms

MAX_WAIT_MS = 7_500  # for more messages of the same sender, from the first one on
MAX_JOINED = 12  # messages in one turn
_NAME_CHARS = 120


def row(channel: str, account_id: str, event: Inbound, decision: Decision) -> InboxEvent:
    states: dict[routing.Action, InboxState] = {"context": "context", "pair": "pairing", "refuse": "refused"}
    keeps_text = decision.action in ("turn", "command", "context")
    return InboxEvent(
        channel=channel,
        account_id=account_id,
        event_id=event.event_id,
        chat_id=event.chat_id,
        thread_id=event.thread_id,
        recipient=event.address.to,
        reply_thread_id=event.address.thread_id,
        sender_id=event.sender.id,
        sender_name=event.sender.name or event.sender.username,
        is_bot=event.sender.is_bot,
        state=states.get(decision.action, "turn"),
        code=decision.code,
        why=decision.why,
        fix=fixes.command(decision.fix) if decision.fix else "",
        session_key=decision.session_key or None,
        body=event.json() if keeps_text else None,
    )


def reply_address(
    channel: str, account_id: str, event: Inbound, decision: Decision, *, joined: bool
) -> ReplyAddress:
    return ReplyAddress(
        route=DeliveryRoute(channel, event.address.to, account_id, event.address.thread_id),
        message_id=event.message_id,
        owed=decision.addressed,
        to_owner=decision.owner,
        joined=joined,
        chat_type=event.chat_type,
    )


def display_name(event: Inbound, decision: Decision) -> str | None:
    """The name of a conversation for people. The main session keeps its own."""
    if decision.session_key.endswith(":main"):
        return None
    return (event.chat_name if event.chat_type != "direct" else event.sender.name) or None


def joined(events: Iterable[InboxEvent]) -> Iterable[list[InboxEvent]]:
    """Messages that become one turn: next to each other, of one sender, in one thread."""
    for _, group in groupby(events, key=lambda e: (e.sender_id, e.thread_id, e.session_key)):
        rows = list(group)
        yield from (rows[i : i + MAX_JOINED] for i in range(0, len(rows), MAX_JOINED))


def due_at(waiting: Sequence[InboxEvent], wait_ms: int) -> int:
    """When a chat's messages become turns: after a pause, and at the latest some time after the first."""
    at = now_ms() + wait_ms
    latest = min((event.created_at_ms for event in waiting), default=now_ms()) + MAX_WAIT_MS
    return min(at, latest)


def bounded(event: Inbound) -> Inbound:
    """The message with names in one line and of limited length: they are shown in prompts and lists."""
    sender, chat_name = event.sender, _name(event.chat_name)
    name, username = _name(sender.name), _name(sender.username)
    text = event.text.encode("utf-8", "replace").decode().replace("\x00", "")
    if (name, username, chat_name, text) == (sender.name, sender.username, event.chat_name, event.text):
        return event
    return replace(
        event, sender=replace(sender, name=name, username=username), chat_name=chat_name, text=text
    )


def _name(text: str) -> str:
    if text.isprintable() and text.isascii() and "  " not in text and len(text) <= _NAME_CHARS:
        return text.strip()
    plain = "".join(c if c.isprintable() else " " for c in text.encode("utf-8", "replace").decode())
    return " ".join(plain.split())[:_NAME_CHARS]


def body(row: InboxEvent) -> Inbound:
    assert row.body is not None
    return Inbound.from_json(row.body)
