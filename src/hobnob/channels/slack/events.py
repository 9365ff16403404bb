"""Slack's events as inbound messages. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hobnob.inbound import Address, Inbound, Media, MediaKind, Quote, Sender
from hobnob.keys import ChatType
from hobnob.records import Struct

_MESSAGES = ("message", "app_mention")
_SUBTYPES = (None, "bot_message", "file_share", "me_message", "thread_broadcast")  # others are no messages
_CHAT_TYPES: dict[str, ChatType] = {"im": "direct", "mpim": "group", "channel": "channel", "group": "channel"}
_KINDS: dict[str, MediaKind] = {"image": "image", "audio": "audio", "video": "video"}
_EVENT_ID = re.compile(r"([A-Z0-9]+):(\d{1,12}\.\d{1,9})")
_TS = re.compile(r"\d{1,12}\.\d{1,9}")
_MARKED = re.compile(r"<([@#!]?)([^\s<>|][^<>|]{0,4000})(?:\|([^<>]{0,4000}))?>")
_USER = re.compile(r"<@([A-Z0-9]{1,30})[|>]")
MAX_FILES = 20
MAX_MENTIONS = 20  # whose names are looked up


class Malformed(ValueError):
    """An event without what every message has."""


class Me(Struct, frozen=True):
    """The bot's own ids."""

    user_id: str
    bot_id: str
    team_id: str
    name: str


class Person(Struct, frozen=True):
    name: str = ""
    username: str = ""
    is_bot: bool = False


class Conversation(Struct, frozen=True):
    """`type` is None if Slack did not tell."""

    name: str = ""
    type: ChatType | None = None


class Names(Struct, frozen=True):
    """What was looked up about the people and conversations of some messages."""

    people: Mapping[str, Person]
    conversations: Mapping[str, Conversation]


def is_message(event: Mapping[str, Any], me: Me) -> bool:
    """Whether an event is a message of somebody else. Edits, deletions and notices are none."""
    if event.get("type") not in _MESSAGES or event.get("subtype") not in _SUBTYPES or event.get("hidden"):
        return False
    return event.get("user") != me.user_id and not (me.bot_id and event.get("bot_id") == me.bot_id)


def people(event: Mapping[str, Any]) -> Iterable[str]:
    """The ids of the people a message shows: its sender, and whom it mentions."""
    user, text = event.get("user"), event.get("text")
    mentioned = _USER.findall(text)[:MAX_MENTIONS] if isinstance(text, str) else []
    return [user, *mentioned] if isinstance(user, str) else mentioned


def conversations(event: Mapping[str, Any]) -> Iterable[str]:
    """The conversation of a message, if it has a name. Direct ones have none, and their ids begin with D."""
    channel = event.get("channel")
    return [channel] if isinstance(channel, str) and not channel.startswith("D") else []


def id_of(event: Mapping[str, Any]) -> str:
    """The same for both events of a mention, which have different ids of their own."""
    return f"{event.get('channel')}:{event.get('ts')}"


def place_of(event_id: str) -> tuple[str, str] | None:
    """The conversation and the time stamp of a message, from the id that `inbound` gives it."""
    found = _EVENT_ID.fullmatch(event_id)
    return (found[1], found[2]) if found else None


def is_time_stamp(text: str) -> bool:
    return _TS.fullmatch(text) is not None


def inbound(event: Mapping[str, Any], me: Me, names: Names) -> Inbound:
    """A message for the inbox. Raises Malformed."""
    channel, ts = _text(event, "channel"), _text(event, "ts")
    if not channel or not is_time_stamp(ts):
        raise Malformed("no channel or no time stamp")
    conversation = names.conversations.get(channel, Conversation())
    chat_type = _chat_type(event, channel, conversation)
    sender = _sender(event, names)
    direct = chat_type == "direct"
    thread = _text(event, "thread_ts", "")
    thread_id = thread if is_time_stamp(thread) and thread != ts else None
    written = _text(event, "text", "")
    return Inbound(
        event_id=id_of(event),
        message_id=ts,
        sender=sender,
        chat_id=sender.id if direct else channel,
        chat_type=chat_type,
        chat_name=conversation.name,
        space_id=_text(event, "team", "") or me.team_id or None,
        thread_id=None if direct else thread_id,  # a direct conversation is one session, with its threads
        address=Address(f"user:{sender.id}" if direct else f"channel:{channel}", thread_id),
        mentioned=f"<@{me.user_id}>" in written or f"<@{me.user_id}|" in written,
        quote=_quote(event, me, thread_id),
        text=readable(written or _attached(event), me, names.people),
        media=tuple(_media(event)),
        at_ms=int(float(ts) * 1000),
    )


def readable(text: str, me: Me, known: Mapping[str, Person]) -> str:
    """Slack's markup as people read it. A mention of the bot at the beginning is left out."""

    def shown(found: re.Match[str]) -> str:
        sign, target, label = found[1], found[2], found[3] or ""
        if sign == "@":
            name = me.name if target == me.user_id else known.get(target, Person()).name
            return "@" + (name or label or target)
        if sign == "#":
            return "#" + (label or target)
        if sign == "!":
            return label or "@" + target.partition("^")[0]
        target = target.removeprefix("mailto:")
        return f"{label} ({target})" if label and label not in target else target

    addressed = re.sub(rf"^\s*<@{re.escape(me.user_id)}(?:\|[^<>]*)?>[,:]?\s*", "", text)
    marked = _MARKED.sub(shown, addressed or text)
    return marked.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _chat_type(event: Mapping[str, Any], channel: str, conversation: Conversation) -> ChatType:
    told = _CHAT_TYPES.get(_text(event, "channel_type", ""))
    return told or conversation.type or ("direct" if channel.startswith("D") else "channel")


def _sender(event: Mapping[str, Any], names: Names) -> Sender:
    user, bot = _text(event, "user", ""), _text(event, "bot_id", "")
    if not (user or bot):
        raise Malformed("no sender")
    person = names.people.get(user, Person())
    profile = event.get("bot_profile")
    bot_name = profile.get("name") if isinstance(profile, dict) else None
    return Sender(
        id=user or bot,
        name=person.name or _text(event, "username", "") or str(bot_name or ""),
        username=person.username,
        aliases=(bot,) if user and bot else (),
        is_bot=bool(bot) or person.is_bot,
    )


def _quote(event: Mapping[str, Any], me: Me, thread_id: str | None) -> Quote | None:
    """A reply in a thread that the bot began answers the bot."""
    if thread_id is None or event.get("parent_user_id") != me.user_id:
        return None
    return Quote(message_id=thread_id, sender_id=me.user_id, sender_name=me.name, own=True)


def _attached(event: Mapping[str, Any]) -> str:
    """What a message without text says, as bots write them: the fallbacks of its attachments."""
    attachments = event.get("attachments")
    found = attachments[:10] if isinstance(attachments, list) else []
    return "\n".join(_text(a, "fallback", "") for a in found if isinstance(a, dict)).strip()


def _media(event: Mapping[str, Any]) -> Iterable[Media]:
    files = event.get("files")
    for file in files[:MAX_FILES] if isinstance(files, list) else ():
        if not isinstance(file, dict) or file.get("mode") in ("tombstone", "hidden_by_limit"):
            continue
        mime_type = _text(file, "mimetype", "")
        size = file.get("size")
        # A file of another organisation has no address in the event; it is asked for by its id.
        ref = (
            _text(file, "url_private_download", "") or _text(file, "url_private", "") or _text(file, "id", "")
        )
        if ref:
            yield Media(
                ref=ref,
                kind=_KINDS.get(mime_type.partition("/")[0], "file"),
                name=_text(file, "name", ""),
                mime_type=mime_type,
                size=size if isinstance(size, int) and not isinstance(size, bool) else None,
            )


def _text(holder: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A text field. Raises Malformed if it is something else, or missing without a default."""
    value = holder.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise Malformed(f"{name} is no text")
    return value
