"""From an envelope of `signal-cli` to a message for the inbox. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from hobnob.inbound import Address, Inbound, Media, MediaKind, Quote, Sender
from hobnob.types import now_ms

Json = dict[str, Any]

_PLACEHOLDER = "\ufffc"
_MAX_FILES = 20
_QUOTE_CHARS = 2_000
GROUP = "group:"


def inbound(envelope: Json, own: frozenset[str], *, with_files: bool) -> Inbound | None:
    """The message of an envelope; None if it has none, or is our own. Raises on malformed ones."""
    data = envelope.get("dataMessage")
    if not isinstance(data, dict) or data.get("reaction") or data.get("remoteDelete"):
        return None
    sender = _sender(envelope)
    if sender is None or own & set(sender.ids):
        return None
    files = _files(data, sender) if with_files else ()
    text = _text(data)
    if not text and not files:
        return None
    timestamp = int(data["timestamp"])
    message_id = made_id(timestamp, bare(sender.id))
    group = data.get("groupInfo") or {}
    group_id = str(group.get("groupId") or "")
    return Inbound(
        event_id=message_id,
        message_id=message_id,
        sender=sender,
        chat_id=group_id or sender.id,
        chat_type="group" if group_id else "direct",
        chat_name=str(group.get("groupName") or ""),
        address=Address(f"{GROUP}{group_id}" if group_id else bare(sender.id)),
        mentioned=any(own & _ids(mention) for mention in _mentions(data)),
        quote=_quote(data.get("quote"), own),
        text=text,
        media=files,
        at_ms=timestamp or now_ms(),
    )


def receipts(envelope: Json) -> tuple[set[str], list[int]]:
    """Who confirms which messages of ours; both empty if the envelope is no receipt."""
    receipt = envelope.get("receiptMessage")
    if not isinstance(receipt, dict):
        return set(), []
    stamps = [stamp for stamp in receipt.get("timestamps") or [] if isinstance(stamp, int)]
    return _ids(envelope), stamps


def made_id(timestamp: int, author: str) -> str:
    """The id of a message: Signal knows it by its time and its author."""
    return f"{timestamp}:{author}"


def parts_of_id(message_id: str) -> tuple[int, str] | None:
    stamp, _, author = message_id.partition(":")
    return (int(stamp), author) if stamp.isdigit() and author else None


def bare(sender_id: str) -> str:
    """An id as `signal-cli` takes it."""
    return sender_id.removeprefix("uuid:")


def _sender(envelope: Json) -> Sender | None:
    number, uuid = envelope.get("sourceNumber"), envelope.get("sourceUuid")
    if not number and not uuid:
        return None
    known = f"uuid:{uuid}" if uuid else ""
    return Sender(
        id=str(number or known),
        name=str(envelope.get("sourceName") or ""),
        aliases=(known,) if number and known else (),
    )


def _ids(person: Json) -> set[str]:
    """The ids of somebody, under the names that the various parts of an envelope have for them."""
    numbers = {person.get(name) for name in ("sourceNumber", "number", "authorNumber")}
    uuids = {person.get(name) for name in ("sourceUuid", "uuid", "authorUuid")}
    return {str(number) for number in numbers if number} | {f"uuid:{uuid}" for uuid in uuids if uuid}


def _mentions(data: Json) -> list[Json]:
    return [each for each in data.get("mentions") or [] if isinstance(each, dict)]


def _text(data: Json) -> str:
    """The text, with names in place of mentions. Positions count UTF-16 units."""
    text = str(data.get("message") or "")
    units = text.encode("utf-16-le", "surrogatepass")
    for mention in sorted(_mentions(data), key=lambda each: -int(each.get("start", 0))):
        start, length = 2 * int(mention.get("start", 0)), 2 * int(mention.get("length", 1))
        if units[start : start + length] == _PLACEHOLDER.encode("utf-16-le"):
            name = str(mention.get("name") or mention.get("number") or "somebody")[:100]
            units = units[:start] + f"@{name}".encode("utf-16-le", "replace") + units[start + length :]
    return units.decode("utf-16-le", "replace").strip()


def _quote(quote: Any, own: frozenset[str]) -> Quote | None:
    if not isinstance(quote, dict) or not isinstance(quote.get("id"), int):
        return None
    ids = _ids(quote)
    author = sorted(ids)[0] if ids else str(quote.get("author") or "")
    return Quote(
        message_id=made_id(quote["id"], bare(author)),
        sender_id=author,
        text=str(quote.get("text") or "")[:_QUOTE_CHARS],
        own=bool(own & ids),
    )


def _files(data: Json, sender: Sender) -> tuple[Media, ...]:
    group_id = (data.get("groupInfo") or {}).get("groupId")
    owner = {"groupId": str(group_id)} if group_id else {"recipient": bare(sender.id)}
    found = [each for each in data.get("attachments") or [] if isinstance(each, dict) and each.get("id")]
    return tuple(_file(each, owner) for each in found[:_MAX_FILES])


def _file(attachment: Json, owner: Json) -> Media:
    kinds: dict[str, MediaKind] = {"image": "image", "audio": "audio", "video": "video"}
    mime_type = str(attachment.get("contentType") or "")
    size = attachment.get("size")
    return Media(
        ref=orjson.dumps({"id": str(attachment["id"]), **owner}).decode(),
        kind=kinds.get(mime_type.partition("/")[0], "file"),
        name=str(attachment.get("filename") or "")[:200],
        mime_type=mime_type[:100],
        size=size if isinstance(size, int) else None,
    )
