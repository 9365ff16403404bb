"""Messages as `imsg` reports them, as inbound messages. Pure functions."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime
from typing import Any

from hobnob.inbound import Address, Inbound, Media, MediaKind, Quote, Sender

GROUP = "chat_id:"
_FILE_MARK = "\ufffc"
_log = logging.getLogger(__name__)


def translate(message: dict[str, Any], own: Collection[str]) -> Inbound | None:
    """A message; None for reactions and what is empty or not understood. `own`: ids of our messages."""
    try:
        return _inbound(message, own)
    except (LookupError, TypeError, ValueError, AttributeError) as fault:
        _log.warning("message %s of imsg not understood: %s", message.get("id"), type(fault).__name__)
        return None


def media_kind(mime_type: str) -> MediaKind:
    match mime_type.partition("/")[0]:
        case "image":
            return "image"
        case "audio":
            return "audio"
        case "video":
            return "video"
    return "file"


def _inbound(message: dict[str, Any], own: Collection[str]) -> Inbound | None:
    if message.get("is_reaction") is True:
        return None
    guid, sender = str(message["guid"]), str(message["sender"])
    if not guid or not sender:
        raise ValueError("without id or sender")
    text = str(message.get("text") or "").replace(_FILE_MARK, "").strip()
    media = tuple(_media(file) for file in message.get("attachments") or [] if not file.get("missing"))
    if not text and not media:
        return None
    is_group = message.get("is_group") is True
    number = int(message["chat_id"])
    quoted = message.get("reply_to_guid")
    return Inbound(
        event_id=guid,
        message_id=guid,
        sender=Sender(id=sender, name=str(message.get("sender_name") or "")),
        chat_id=str(number) if is_group else sender,
        chat_type="group" if is_group else "direct",
        chat_name=str(message.get("chat_name") or "") if is_group else "",
        address=Address(f"{GROUP}{number}" if is_group else sender),
        quote=Quote(message_id=str(quoted), own=str(quoted) in own) if quoted else None,
        text=text,
        media=media,
        at_ms=int(datetime.fromisoformat(str(message["created_at"])).timestamp() * 1000),
    )


def _media(file: dict[str, Any]) -> Media:
    mime_type = str(file.get("mime_type") or "")
    size = file.get("total_bytes")
    return Media(
        ref=str(file["original_path"]),
        kind=media_kind(mime_type),
        name=str(file.get("transfer_name") or ""),
        mime_type=mime_type,
        size=size if type(size) is int else None,
    )
