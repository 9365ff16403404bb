"""Updates of the Telegram Bot API as inbound messages. Pure functions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from hobnob.inbound import Address, Inbound, Media, MediaKind, Quote, Sender
from hobnob.keys import ChatType
from hobnob.records import Struct, replace

GENERAL_TOPIC = "1"
"""The topic of messages in a forum that are in no other one."""
_CHAT_TYPES: dict[str, ChatType] = {
    "private": "direct",
    "group": "group",
    "supergroup": "group",
    "channel": "channel",
}
_MEDIA: dict[str, MediaKind] = {
    "animation": "video",
    "document": "file",
    "video": "video",
    "video_note": "video",
    "voice": "audio",
    "audio": "audio",
    "sticker": "image",
}
_log = logging.getLogger(__name__)


class Bot(Struct, frozen=True):
    """Who the bot is, as `getMe` says."""

    id: int
    username: str = ""
    has_topics: bool = False
    reads_groups: bool = True


class Update(Struct, frozen=True):
    """An update with its message, if it is one that counts, and the album the message belongs to."""

    id: int
    event: Inbound | None = None
    album: tuple[str, str] | None = None


def translate(updates: Iterable[Any], bot: Bot) -> list[Update]:
    """Updates in their order. One that cannot be understood is logged and has no message."""
    found: list[Update] = []
    for raw in updates:
        if not isinstance(raw, dict) or type(raw.get("update_id")) is not int:
            _log.warning("Telegram update without an id skipped")
            continue
        update = Update(raw["update_id"])
        try:
            message = raw.get("message") or raw.get("channel_post")
            if message is not None and (event := _inbound(message, bot)) is not None:
                group = message.get("media_group_id")
                album = (event.chat_id, str(group)) if group is not None else None
                update = replace(update, event=event, album=album)
        except (LookupError, TypeError, ValueError, AttributeError) as fault:
            _log.warning("Telegram update %d not understood: %s", update.id, type(fault).__name__)
        found.append(update)
    return found


def events(updates: Sequence[Update]) -> list[Inbound]:
    """The messages, with the files of an album joined into its first message."""
    joined: dict[object, Inbound] = {}
    for update in updates:
        if (event := update.event) is None:
            continue
        place: object = update.album or update.id
        first = joined.get(place)
        joined[place] = event if first is None else _with_files_of(first, event)
    return list(joined.values())


def _with_files_of(first: Inbound, other: Inbound) -> Inbound:
    """An album: the caption and the mention may be on any of its messages."""
    return replace(
        first,
        text="\n".join(filter(None, (first.text, other.text))),
        media=(*first.media, *other.media),
        mentioned=first.mentioned or other.mentioned,
        quote=first.quote or other.quote,
    )


def _inbound(message: dict[str, Any], bot: Bot) -> Inbound | None:
    chat = message["chat"]
    chat_type = _CHAT_TYPES[chat["type"]]
    chat_id = str(int(chat["id"]))
    if (moved_to := message.get("migrate_to_chat_id")) is not None:
        _log.warning("the Telegram group %s has the id %s now: change it in the settings", chat_id, moved_to)
    sender = _sender(message)
    text, mentioned = _text(message, bot)
    media = _media(message)
    if sender.id == str(bot.id) or not (text or media):  # service messages have neither
        return None
    thread_id = _thread_id(message, bot)
    message_id = str(int(message["message_id"]))
    return Inbound(
        event_id=f"{chat_id}:{message_id}",
        message_id=message_id,
        sender=sender,
        chat_id=chat_id,
        chat_type=chat_type,
        chat_name=str(chat.get("title") or ""),
        thread_id=thread_id,
        thread_word="topic",
        address=Address(chat_id, thread_id),
        mentioned=mentioned,
        quote=_quote(message, bot),
        text=text,
        media=media,
        at_ms=int(message["date"]) * 1000,
    )


def _sender(message: dict[str, Any]) -> Sender:
    """The author; for anonymous administrators and channels the chat they write for."""
    chat = message.get("sender_chat") or (message["chat"] if "from" not in message else None)
    if chat is not None:
        return Sender(
            id=str(int(chat["id"])),
            name=str(chat.get("title") or ""),
            username=str(chat.get("username") or ""),
        )
    user = message["from"]
    return Sender(
        id=str(int(user["id"])),
        name=_name(user),
        username=str(user.get("username") or ""),
        is_bot=user.get("is_bot") is True,
    )


def _name(user: dict[str, Any]) -> str:
    return " ".join(str(user[key]) for key in ("first_name", "last_name") if user.get(key))


def _thread_id(message: dict[str, Any], bot: Bot) -> str | None:
    """The topic. Replies in ordinary groups have a thread id as well, but they are in no topic."""
    chat = message["chat"]
    if message.get("is_topic_message") is True and (chat["type"] != "private" or bot.has_topics):
        return str(int(message["message_thread_id"]))
    return GENERAL_TOPIC if chat.get("is_forum") is True and chat["type"] != "private" else None


def _text(message: dict[str, Any], bot: Bot) -> tuple[str, bool]:
    """The text or caption, and whether it mentions the bot. `/command@bot` becomes `/command`."""
    key, entities_key = ("text", "entities") if "text" in message else ("caption", "caption_entities")
    text = str(message.get(key) or "")
    if not text:
        return _described(message), False
    raw = text.encode("utf-16-le", "surrogatepass")  # entities count in UTF-16 units
    own = f"@{bot.username}".casefold()
    mentioned = False
    for entity in reversed(message.get(entities_key) or []):
        start, end = 2 * int(entity["offset"]), 2 * (int(entity["offset"]) + int(entity["length"]))
        marked = raw[start:end].decode("utf-16-le", "replace")
        match entity["type"]:
            case "mention":
                mentioned |= marked.casefold() == own
            case "text_mention":
                mentioned |= entity["user"]["id"] == bot.id
            case "bot_command" if marked.casefold().endswith(own) and bot.username:
                mentioned = True
                raw = raw[: end - 2 * len(own)] + raw[end:]
    return raw.decode("utf-16-le", "replace"), mentioned


def _described(message: dict[str, Any]) -> str:
    """What a message without text says."""
    if sticker := message.get("sticker"):
        return str(sticker.get("emoji") or "")
    if place := message.get("location"):
        return f"(location: {float(place['latitude'])}, {float(place['longitude'])})"
    if contact := message.get("contact"):
        return f"(contact: {_name(contact)} {contact.get('phone_number') or ''})"
    return ""


def _media(message: dict[str, Any]) -> tuple[Media, ...]:
    if photo := message.get("photo"):
        largest = photo[-1]
        return (
            Media(
                ref=str(largest["file_id"]),
                kind="image",
                name=f"photo-{int(message['message_id'])}.jpg",
                mime_type="image/jpeg",
                size=_size(largest),
            ),
        )
    for key, kind in _MEDIA.items():
        if file := message.get(key):
            is_moving = file.get("is_animated") is True or file.get("is_video") is True
            return (
                Media(
                    ref=str(file["file_id"]),
                    kind="file" if key == "sticker" and is_moving else kind,
                    name=str(file.get("file_name") or ""),
                    mime_type=str(file.get("mime_type") or ""),
                    size=_size(file),
                ),
            )
    return ()


def _size(file: dict[str, Any]) -> int | None:
    size = file.get("file_size")
    return size if type(size) is int else None


def _quote(message: dict[str, Any], bot: Bot) -> Quote | None:
    """The message it answers. In a topic, messages without one refer to the message that opened it."""
    quoted = message.get("reply_to_message")
    if not quoted or "forum_topic_created" in quoted:
        return None
    if message.get("is_topic_message") and quoted["message_id"] == message.get("message_thread_id"):
        return None
    author = _sender(quoted)
    part = message.get("quote")
    chosen = part.get("text") if isinstance(part, dict) else None
    return Quote(
        message_id=str(int(quoted["message_id"])),
        sender_id=author.id,
        sender_name=author.name or author.username,
        text=str(chosen or quoted.get("text") or quoted.get("caption") or ""),
        own=author.id == str(bot.id),
    )
