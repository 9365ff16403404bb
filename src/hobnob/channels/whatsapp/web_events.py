"""Messages of WhatsApp Web, as the library neonize reports them, as inbound messages. Pure functions.

The messages are protobufs of the library. They are read by the names of their fields, so that this module
does not need the library.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from typing import Any

from hobnob.inbound import Address, Inbound, Media, MediaKind, Quote, Sender
from hobnob.records import Struct

PHONE, HIDDEN, GROUP = "s.whatsapp.net", "lid", "g.us"
_WRAPPERS = (
    "deviceSentMessage",
    "ephemeralMessage",
    "viewOnceMessage",
    "viewOnceMessageV2",
    "viewOnceMessageV2Extension",
    "documentWithCaptionMessage",
)
_MAX_WRAPPERS = 5
_MEDIA: dict[str, MediaKind] = {
    "imageMessage": "image",
    "stickerMessage": "image",
    "videoMessage": "video",
    "ptvMessage": "video",
    "audioMessage": "audio",
    "documentMessage": "file",
}
_THUMBNAILS = ("JPEGThumbnail", "pngThumbnail", "contextInfo", "streamingSidecar", "waveform")
_log = logging.getLogger(__name__)


class Own(Struct, frozen=True):
    """The account itself: its number and its hidden id, each without the server."""

    users: frozenset[str]


def translate(event: Any, own: Own, group_name: str = "") -> Inbound | None:
    """A message; None for our own, for status posts, and for what is empty or not understood."""
    try:
        return _inbound(event, own, group_name)
    except (LookupError, TypeError, ValueError, AttributeError) as fault:
        _log.warning("WhatsApp message not understood: %s", type(fault).__name__)
        return None


def address_of(jid: Any) -> str:
    """A chat as it is written in settings: a number with a plus, or the id that WhatsApp uses."""
    return f"+{jid.User}" if jid.Server == PHONE else f"{jid.User}@{jid.Server}"


def unwrapped(message: Any) -> Any:
    """The message inside of those that vanish or are shown once."""
    for _ in range(_MAX_WRAPPERS):
        inner = next((name for name in _WRAPPERS if message.HasField(name)), None)
        if inner is None:
            break
        message = getattr(message, inner).message
    return message


def _inbound(event: Any, own: Own, group_name: str) -> Inbound | None:
    info, source = event.Info, event.Info.MessageSource
    if source.IsFromMe or event.IsEdit or source.Chat.Server not in (PHONE, HIDDEN, GROUP):
        return None
    message = unwrapped(event.Message)
    text, media = _text(message), tuple(_media(message))
    if not info.ID or not (text or media):
        return None
    sender = _sender(source, info.Pushname)
    is_group = source.Chat.Server == GROUP
    chat = address_of(source.Chat)
    context = _context(message)
    return Inbound(
        event_id=f"{chat}:{source.Sender.User}:{info.ID}",
        message_id=info.ID,
        sender=sender,
        chat_id=chat if is_group else sender.id,
        chat_type="group" if is_group else "direct",
        chat_name=group_name if is_group else "",
        address=Address(chat),
        mentioned=_is_mentioned(context, own) if is_group else None,
        quote=_quote(context, own),
        text=text,
        media=media,
        at_ms=_milliseconds(info.Timestamp),
    )


def _milliseconds(timestamp: int) -> int:
    """WhatsApp counts seconds; the library may pass milliseconds on."""
    return timestamp if timestamp > 100_000_000_000 else timestamp * 1000


def _sender(source: Any, name: str) -> Sender:
    """The author, by the number where it is known; a hidden id is another name of the same person."""
    ids = [source.Sender, source.SenderAlt]
    numbers = [f"+{jid.User}" for jid in ids if jid.Server == PHONE and jid.User]
    hidden = [f"{jid.User}@{HIDDEN}" for jid in ids if jid.Server == HIDDEN and jid.User]
    first, *others = [*numbers, *hidden]
    return Sender(id=first, name=name, aliases=tuple(dict.fromkeys(others)))


def _text(message: Any) -> str:
    if message.conversation:
        return str(message.conversation)
    if message.HasField("extendedTextMessage"):
        return str(message.extendedTextMessage.text)
    if message.HasField("locationMessage"):
        place = message.locationMessage
        name = f" {place.name}" if place.name else ""
        return f"(location: {place.degreesLatitude}, {place.degreesLongitude}{name})"
    if message.HasField("contactMessage"):
        return f"(contact: {message.contactMessage.displayName})"
    if message.HasField("buttonsResponseMessage"):
        return str(message.buttonsResponseMessage.selectedDisplayText)
    if message.HasField("listResponseMessage"):
        return str(message.listResponseMessage.title)
    for name in ("imageMessage", "videoMessage", "documentMessage"):
        if message.HasField(name):
            return str(getattr(message, name).caption)
    return ""


def _media(message: Any) -> Iterator[Media]:
    for name, kind in _MEDIA.items():
        if not message.HasField(name):
            continue
        carrier = type(message)()  # what the library needs to download and decrypt the file, and no more
        kept = getattr(carrier, name)
        kept.CopyFrom(getattr(message, name))
        for field in _THUMBNAILS:
            if field in kept.DESCRIPTOR.fields_by_name:
                kept.ClearField(field)
        yield Media(
            ref=base64.b64encode(carrier.SerializeToString()).decode(),
            kind=kind,
            name=str(getattr(kept, "fileName", "") or ""),
            mime_type=str(kept.mimetype),
            size=int(kept.fileLength),
        )


def _context(message: Any) -> Any:
    """What a message says about mentions and the message it answers; None if nothing."""
    for field, value in message.ListFields():
        if field.message_type is not None and "contextInfo" in field.message_type.fields_by_name:
            if value.HasField("contextInfo"):
                return value.contextInfo
    return None


def _is_mentioned(context: Any, own: Own) -> bool:
    return context is not None and any(_user(jid) in own.users for jid in context.mentionedJID)


def _quote(context: Any, own: Own) -> Quote | None:
    if context is None or not context.stanzaID:
        return None
    author = _user(context.participant)
    return Quote(
        message_id=str(context.stanzaID),
        sender_id=f"+{author}" if context.participant.endswith(f"@{PHONE}") else str(context.participant),
        text=_text(unwrapped(context.quotedMessage)),
        own=author in own.users,
    )


def _user(jid: str) -> str:
    """The user of an id such as `1555:12@s.whatsapp.net`, without the device."""
    return jid.partition("@")[0].partition(":")[0]
