"""Messages as a BlueBubbles server reports them, as inbound messages. Pure functions."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from hobnob.channels.imessage.imsg_events import media_kind
from hobnob.inbound import Address, Inbound, Media, Quote, Sender

_GROUP_STYLE = 43
_FILE_MARK = "\ufffc"
_log = logging.getLogger(__name__)


def created_at(message: dict[str, Any]) -> int:
    """The time of a message in milliseconds; 0 if it has none."""
    at_ms = message.get("dateCreated")
    return at_ms if type(at_ms) is int else 0


def translate(message: dict[str, Any], own: Collection[str], *, files: bool) -> Inbound | None:
    """A message; None for reactions and what is empty or not understood. `own`: ids of our messages."""
    try:
        return _inbound(message, own, files=files)
    except (LookupError, TypeError, ValueError, AttributeError) as fault:
        _log.warning("message of BlueBubbles not understood: %s", type(fault).__name__)
        return None


def _inbound(message: dict[str, Any], own: Collection[str], *, files: bool) -> Inbound | None:
    if message.get("associatedMessageGuid"):  # a reaction
        return None
    guid, sender = str(message["guid"]), str(message["handle"]["address"])
    text = str(message.get("text") or "").replace(_FILE_MARK, "").strip()
    media = tuple(_media(file) for file in message.get("attachments") or []) if files else ()
    if not guid or not sender or not (text or media):
        return None
    chat = message["chats"][0]
    place, is_group = str(chat["guid"]), chat.get("style") == _GROUP_STYLE or ";+;" in str(chat["guid"])
    quoted = message.get("threadOriginatorGuid")
    return Inbound(
        event_id=guid,
        message_id=guid,
        sender=Sender(id=sender),
        chat_id=place if is_group else sender,
        chat_type="group" if is_group else "direct",
        chat_name=str(chat.get("displayName") or "") if is_group else "",
        address=Address(place),
        quote=Quote(message_id=str(quoted), own=str(quoted) in own) if quoted else None,
        text=text,
        media=media,
        at_ms=created_at(message),
    )


def _media(file: dict[str, Any]) -> Media:
    mime_type, size = str(file.get("mimeType") or ""), file.get("totalBytes")
    return Media(
        ref=str(file["guid"]),
        kind=media_kind(mime_type),
        name=str(file.get("transferName") or ""),
        mime_type=mime_type,
        size=size if type(size) is int else None,
    )
