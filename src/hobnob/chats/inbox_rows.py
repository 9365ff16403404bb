"""Rows of the inbox: from a message and the decision about it to a row, a name and an address. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from hobnob import fixes, routing
from hobnob.chat_types import InboxEvent, InboxState
from hobnob.delivery_routes import DeliveryRoute, ReplyAddress
from hobnob.inbound import Inbound, Media, Quote
from hobnob.records import replace
from hobnob.routing import Decision
from hobnob.types import now_ms

MAX_WAIT_MS = 7_500  # for more messages of the same sender, from the first one on
MAX_JOINED = 12  # messages in one turn
_NAME_CHARS = 120
_ID_CHARS = 1_000
_QUOTE_CHARS = 4_000


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


def joined(events: Iterable[InboxEvent], is_command: Callable[[str], bool]) -> Iterable[list[InboxEvent]]:
    """Messages that become one turn: next to each other, of one sender, in one thread. A command is alone."""

    def kind(event: InboxEvent) -> tuple[object, ...]:
        alone = event.seq if is_command(body(event).text) else None
        return event.sender_id, event.thread_id, event.session_key, alone

    for _, group in groupby(events, key=kind):
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
    quote, media = event.quote and _bounded_quote(event.quote), tuple(map(_bounded_media, event.media))
    text = _text(event.text)
    if (name, username, chat_name, text) == (sender.name, sender.username, event.chat_name, event.text):
        if quote == event.quote and media == event.media:
            return event
    sender = replace(sender, name=name, username=username)
    return replace(event, sender=sender, chat_name=chat_name, text=text, quote=quote, media=media)


def too_long(event: Inbound) -> str | None:
    """The id of a message that is longer than any platform's."""
    ids = {
        "event id": event.event_id,
        "message id": event.message_id,
        "sender id": event.sender.id,
        "chat id": event.chat_id,
        "thread id": event.thread_id or "",
        "address": event.address.to,
    }
    return next((name for name, value in ids.items() if len(value) > _ID_CHARS), None)


def _bounded_quote(quote: Quote) -> Quote:
    return replace(quote, sender_name=_name(quote.sender_name), text=_text(quote.text[:_QUOTE_CHARS]))


def _bounded_media(media: Media) -> Media:
    return replace(media, name=_name(media.name), mime_type=_name(media.mime_type))


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\x00", "")


def _name(text: str) -> str:
    if text.isprintable() and text.isascii() and "  " not in text and len(text) <= _NAME_CHARS:
        return text.strip()
    plain = "".join(c if c.isprintable() else " " for c in text.encode("utf-8", "replace").decode())
    return " ".join(plain.split())[:_NAME_CHARS]


def body(row: InboxEvent) -> Inbound:
    assert row.body is not None
    return Inbound.from_json(row.body)
