"""Calls of the WhatsApp Cloud API to the webhook, as inbound messages and statuses. Pure functions."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hobnob.channels.whatsapp.graph import described
from hobnob.inbound import Address, Inbound, Media, MediaKind, Quote, Sender
from hobnob.records import Struct

_MEDIA: dict[str, MediaKind] = {
    "image": "image",
    "sticker": "image",
    "audio": "audio",
    "video": "video",
    "document": "file",
}
_log = logging.getLogger(__name__)


class Status(Struct, frozen=True):
    """What became of a message of ours. `key` is that of the part; `error` is set if it failed."""

    key: str
    message_id: str
    error: str | None = None


@dataclass(slots=True)
class Update:
    """The content of a call."""

    events: list[Inbound] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)


def translate(payload: Any, phone_number_id: str) -> Update:
    """What a call contains for one phone number. What cannot be understood is logged and skipped."""
    found = Update()
    for value in _values(payload):
        try:
            number = value["metadata"]
            if str(number["phone_number_id"]) != phone_number_id:
                _log.warning("WhatsApp event for the phone number id %s skipped", number["phone_number_id"])
                continue
            own = _digits(str(number.get("display_phone_number") or ""))
            names = {
                str(c["wa_id"]): str(c["profile"]["name"])
                for c in value.get("contacts") or []
                if "profile" in c
            }
        except (LookupError, TypeError, ValueError, AttributeError) as fault:
            _log.warning("WhatsApp event not understood: %s", type(fault).__name__)
            continue
        for raw in _list(value.get("messages")):
            try:
                if (event := _inbound(raw, own, names)) is not None:
                    found.events.append(event)
            except (LookupError, TypeError, ValueError, AttributeError) as fault:
                _log.warning("WhatsApp message not understood: %s", type(fault).__name__)
        for raw in _list(value.get("statuses")):
            try:
                if (status := _status(raw)) is not None:
                    found.statuses.append(status)
            except (LookupError, TypeError, ValueError, AttributeError) as fault:
                _log.warning("WhatsApp status not understood: %s", type(fault).__name__)
    return found


def _values(payload: Any) -> Iterator[dict[str, Any]]:
    for entry in _list(payload.get("entry") if isinstance(payload, dict) else None):
        for change in _list(entry.get("changes") if isinstance(entry, dict) else None):
            if isinstance(change, dict) and change.get("field") == "messages":
                if isinstance(value := change.get("value"), dict):
                    yield value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _digits(text: str) -> str:
    return "".join(character for character in text if character.isdigit())


def _inbound(message: dict[str, Any], own: str, names: dict[str, str]) -> Inbound | None:
    number = str(message["from"])
    if not number.isdigit():
        raise ValueError(number)
    message_id, group = str(message["id"]), message.get("group_id")
    text, media = _text(message), _media(message)
    if not text and not media:  # reactions, changes of numbers, and what WhatsApp does not pass on
        _log.debug("WhatsApp message of type %s skipped", message.get("type"))
        return None
    chat = str(group) if group else f"+{number}"
    return Inbound(
        event_id=message_id,
        message_id=message_id,
        sender=Sender(id=f"+{number}", name=names.get(number, ""), aliases=(number,)),
        chat_id=chat,
        chat_type="group" if group else "direct",
        address=Address(chat),
        quote=_quote(message, own),
        text=text,
        media=media,
        at_ms=int(message["timestamp"]) * 1000,
    )


def _text(message: dict[str, Any]) -> str:
    kind = message["type"]
    match kind:
        case "text":
            return str(message["text"]["body"])
        case "button":
            return str(message["button"]["text"])
        case "interactive":
            chosen = message["interactive"]
            return str(chosen[chosen["type"]]["title"])
        case "location":
            place = message["location"]
            name = f" {place['name']}" if place.get("name") else ""
            return f"(location: {float(place['latitude'])}, {float(place['longitude'])}{name})"
        case "contacts":
            people = [str(contact["name"]["formatted_name"]) for contact in message["contacts"]]
            return f"(contact: {', '.join(people)})"
    return str(message[kind].get("caption") or "") if kind in _MEDIA else ""


def _media(message: dict[str, Any]) -> tuple[Media, ...]:
    kind = message["type"]
    if kind not in _MEDIA:
        return ()
    file = message[kind]
    return (
        Media(
            ref=str(file["id"]),
            kind=_MEDIA[kind],
            name=str(file.get("filename") or ""),
            mime_type=str(file.get("mime_type") or ""),
        ),
    )


def _quote(message: dict[str, Any], own: str) -> Quote | None:
    """The message it answers. The Cloud API names its id and author only; a forwarded one has no id."""
    context = message.get("context") or {}
    if not context.get("id"):
        return None
    author = _digits(str(context.get("from") or ""))
    return Quote(message_id=str(context["id"]), sender_id=f"+{author}" if author else "", own=author == own)


def _status(status: dict[str, Any]) -> Status | None:
    """Each message has several statuses: sent, delivered, read; or failed, with errors."""
    key, message_id = status.get("biz_opaque_callback_data"), str(status["id"])
    if not isinstance(key, str) or not key:
        return None
    if status["status"] != "failed":
        return Status(key, message_id)
    error = (_list(status.get("errors")) or [{}])[0]
    code = error.get("code") if type(error.get("code")) is int else -1
    data = error.get("error_data")
    text = str((data or {}).get("details") or error.get("title") or "no reason given")[:500]
    return Status(key, message_id, described(code, text))
