"""Discord's messages and chats, translated. What Discord sends may have any shape: a ValueError says so."""

from __future__ import annotations

from typing import Any

from hobnob.channels.discord import fields
from hobnob.channels.discord.directory import Directory
from hobnob.inbound import Address, Inbound, Media, MediaKind, Quote, Sender

_EPOCH_MS = 1_420_070_400_000  # an id begins with the milliseconds since 2015
_WRITTEN_BY_SOMEBODY = {0, 19}  # a message, a reply; other types are notices such as "pinned a message"


def at_ms(message_id: str) -> int:
    return (int(message_id) >> 22) + _EPOCH_MS


def id_at(time_ms: int) -> int:
    """The lowest id that a message of this time can have."""
    return max(0, time_ms - _EPOCH_MS) << 22


def after(page: Any, newest: int) -> list[dict[str, Any]]:
    """The messages of a page with higher ids, oldest first."""
    found = [raw for raw in page if isinstance(raw, dict)] if isinstance(page, list) else []
    numbered = [(int(raw["id"]), raw) for raw in found if str(raw.get("id")).isdigit()]
    return [raw for number, raw in sorted(numbered, key=lambda item: item[0]) if number > newest]


async def inbound(raw: Any, own_id: str, directory: Directory) -> Inbound | None:
    """A message as the core takes it; None for a notice. Raises ValueError if it is malformed."""
    raw = fields.dict_of(raw)
    if raw.get("type", 0) not in _WRITTEN_BY_SOMEBODY:
        return None
    message_id = fields.id_of(raw, "id")
    guild_id = None if raw.get("guild_id") is None else fields.id_of(raw, "guild_id")
    sender = _sender(raw)
    where = await _place(raw, sender, guild_id, directory)
    roles = {role for role in fields.list_of(raw, "mention_roles") if isinstance(role, str)}
    if roles and guild_id is not None:
        roles &= await directory.own_roles(guild_id, own_id)
    mentioned = bool(roles) or own_id in [user.get("id") for user in fields.dicts(raw, "mentions")]
    marks = (f"<@{own_id}>", f"<@!{own_id}>", *(f"<@&{role}>" for role in roles))
    text, media = _content(raw, marks)
    return Inbound(
        event_id=message_id,
        message_id=message_id,
        sender=sender,
        mentioned=mentioned,
        quote=_quote(raw, own_id),
        text=text,
        media=media,
        at_ms=at_ms(message_id),
        **where,
    )


async def _place(
    raw: dict[str, Any], sender: Sender, guild_id: str | None, directory: Directory
) -> dict[str, Any]:
    """Where a message was written, and where to answer."""
    channel_id = fields.id_of(raw, "channel_id")
    if guild_id is None:
        address = Address(f"user:{sender.id}")
        return {"chat_id": sender.id, "chat_type": "direct", "chat_name": sender.name, "address": address}
    chat = await directory.chat(channel_id)
    thread_id = None
    if chat.is_thread and chat.parent_id is not None:
        thread_id, chat = chat.id, await directory.chat(chat.parent_id)
    return {
        "chat_id": chat.id,
        "chat_type": "channel",
        "chat_name": chat.name,
        "space_id": guild_id,
        "thread_id": thread_id,
        "address": Address(f"channel:{chat.id}", thread_id),
    }


def author_id(raw: Any) -> str:
    return fields.id_of(fields.dict_of(fields.dict_of(raw).get("author")), "id")


def _sender(raw: dict[str, Any]) -> Sender:
    author, member = fields.dict_of(raw.get("author")), raw.get("member")
    member = member if isinstance(member, dict) else {}
    username = str(author.get("username") or "")
    return Sender(
        id=fields.id_of(author, "id"),
        name=str(member.get("nick") or author.get("global_name") or username),
        username=username,
        roles=tuple(role for role in fields.list_of(member, "roles") if isinstance(role, str)),
        is_bot=bool(author.get("bot") or raw.get("webhook_id")),
    )


def _quote(raw: dict[str, Any], own_id: str) -> Quote | None:
    reference, quoted = raw.get("message_reference"), raw.get("referenced_message")
    if not isinstance(reference, dict) or raw.get("type") != 19:
        return None
    if not isinstance(quoted, dict):  # deleted
        message_id = reference.get("message_id")
        return Quote(message_id=message_id) if isinstance(message_id, str) else None
    sender = _sender(quoted)
    return Quote(
        message_id=fields.id_of(quoted, "id"),
        sender_id=sender.id,
        sender_name=sender.name,
        text=_content(quoted)[0],
        own=sender.id == own_id,
    )


def _content(raw: dict[str, Any], marks: tuple[str, ...] = ()) -> tuple[str, tuple[Media, ...]]:
    """The text and the files of a message; of a forwarded one, those of the original."""
    place = f"{raw.get('channel_id')}/{raw.get('id')}"
    text = _readable(raw, marks)
    media = [_media(file, place) for file in fields.dicts(raw, "attachments")]
    for snapshot in fields.dicts(raw, "message_snapshots"):
        original = snapshot.get("message")
        if isinstance(original, dict):
            text = "\n".join(filter(None, [text, _readable(original)]))
            media += [_media(file, place) for file in fields.dicts(original, "attachments")]
    stickers = [f"[sticker: {item.get('name')}]" for item in fields.dicts(raw, "sticker_items")]
    return "\n".join(filter(None, [text, *stickers])), tuple(media)


def _readable(raw: dict[str, Any], marks: tuple[str, ...] = ()) -> str:
    """The text with names in place of ids, and without the mark at its beginning that mentions the bot."""
    text = raw.get("content")
    if not isinstance(text, str):
        return ""
    for mark in marks:
        text = text.lstrip().removeprefix(mark).lstrip() or text
    for user in fields.dicts(raw, "mentions"):
        name = user.get("global_name") or user.get("username")
        if isinstance(user.get("id"), str) and name:
            text = text.replace(f"<@{user['id']}>", f"@{name}").replace(f"<@!{user['id']}>", f"@{name}")
    return text


def _media(file: dict[str, Any], place: str) -> Media:
    """A file. Its URL expires, so `ref` names the message that it can be looked up in."""
    mime_type, size = str(file.get("content_type") or ""), file.get("size")
    kinds: dict[str, MediaKind] = {"image": "image", "audio": "audio", "video": "video"}
    return Media(
        ref=f"{place}/{fields.id_of(file, 'id')}",
        kind=kinds.get(mime_type.partition("/")[0], "file"),
        name=str(file.get("filename") or ""),
        mime_type=mime_type,
        size=size if isinstance(size, int) else None,
    )


def attachment_url(message: Any, attachment_id: str) -> str | None:
    """The URL of a file of a message, or of the message that it forwards."""
    message = fields.dict_of(message)
    snapshots = [fields.dict_of(item.get("message")) for item in fields.dicts(message, "message_snapshots")]
    for file in (file for holder in (message, *snapshots) for file in fields.dicts(holder, "attachments")):
        if file.get("id") == attachment_id and isinstance(file.get("url"), str):
            return str(file["url"])
    return None


def own_reactions(message: Any) -> list[str]:
    """The bot's reactions to a message, as they are named in requests."""
    emojis = [
        fields.dict_of(item.get("emoji"))
        for item in fields.dicts(fields.dict_of(message), "reactions")
        if item.get("me")
    ]
    return [
        f"{emoji.get('name')}:{emoji['id']}" if emoji.get("id") else str(emoji.get("name"))
        for emoji in emojis
    ]
