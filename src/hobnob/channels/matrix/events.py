"""Matrix events: translated to inbound messages, and the content of those we send. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from hobnob import json_input
from hobnob.channels import Outgoing
from hobnob.channels.text import matrix_html
from hobnob.inbound import Address, Inbound, Media, MediaKind, Quote, Sender

Json = dict[str, Any]
ThreadReplies = Literal["inbound", "always", "off"]
CHANGES = ["m.room.member", "m.room.name", "m.room.encryption"]
TYPES = ["m.room.message", "m.sticker", "m.room.encrypted", *CHANGES]
_KINDS: dict[str, MediaKind] = {
    "m.image": "image",
    "m.audio": "audio",
    "m.video": "video",
    "m.file": "file",
    "m.sticker": "image",
}
_SERVER_PART = re.compile(r":.*", re.DOTALL)
_MXC = re.compile(r"mxc://([A-Za-z0-9.:\[\]-]{1,255})/([A-Za-z0-9_=-]{1,255})")


@dataclass(slots=True)
class Room:
    """What we know about a room. `members` are those who joined, with their display names."""

    id: str
    name: str = ""
    members: dict[str, str] = field(default_factory=dict)
    is_direct: bool = False
    is_encrypted: bool = False


def sync_filter(limit: int) -> Json:
    """What a sync contains: messages and what changes a room, nothing else."""
    none: Json = {"types": []}
    timeline = {"limit": limit, "types": TYPES}
    room = {"timeline": timeline, "state": none, "ephemeral": none, "account_data": none}
    return {"presence": none, "account_data": {"types": ["m.direct"]}, "room": room}


def first_filter() -> Json:
    """What the first sync of a connection contains: direct rooms and invitations, nothing of joined rooms."""
    chosen = sync_filter(1)
    chosen["room"]["rooms"] = ["!none:invalid"]  # with an empty list Synapse leaves out invitations too
    return chosen


def since_invitation(events: list[Json], me: str) -> list[Json]:
    """The events of a room since we were invited, or joined if nobody invited us; all if neither is there.

    People write their first message before the bot has joined; what is older is none of its business.
    """
    start, invited = 0, False
    for index, event in enumerate(events, 1):
        if event.get("type") != "m.room.member" or event.get("state_key") != me or _only_renamed(event):
            continue
        membership = _dict(event.get("content")).get("membership")
        if membership != "join" or not invited:
            start = index
        invited = membership == "invite" or (invited and membership == "join")
    return events[start:]


def has_joined(events: list[Json], me: str) -> bool:
    """Whether we joined the room within these events."""
    return any(
        event.get("type") == "m.room.member"
        and event.get("state_key") == me
        and _dict(event.get("content")).get("membership") == "join"
        and not _only_renamed(event)
        for event in events
    )


def _only_renamed(event: Json) -> bool:
    """Whether somebody who had joined changed their name."""
    previous = _dict(_dict(event.get("unsigned")).get("prev_content")).get("membership")
    return bool(previous == "join" == _dict(event.get("content")).get("membership"))


def is_message(event: Json, me: str) -> bool:
    """Whether an event is a message of somebody else; edits are none."""
    content = _dict(event.get("content"))
    return (
        event.get("type") in ("m.room.message", "m.sticker")
        and event.get("sender") != me
        and isinstance(event.get("event_id"), str)
        and isinstance(event.get("sender"), str)
        and isinstance(content.get("body"), str)
        and relation(content).get("rel_type") != "m.replace"
    )


def relation(content: Json) -> Json:
    return _dict(content.get("m.relates_to"))


def replied_to(content: Json) -> str | None:
    """The message that a message answers. In a thread it may be named only for old clients."""
    related = relation(content)
    if related.get("rel_type") == "m.thread" and related.get("is_falling_back", True) is not False:
        return None
    found = _dict(related.get("m.in_reply_to")).get("event_id")
    return found if isinstance(found, str) else None


def inbound(event: Json, room: Room, me: str, threads: ThreadReplies, quote: Quote | None) -> Inbound:
    """A message for the inbox. `is_message` holds for the event."""
    content, event_id, sender = event["content"], event["event_id"], event["sender"]
    related = relation(content)
    thread = related.get("event_id") if related.get("rel_type") == "m.thread" else None
    if not isinstance(thread, str) or threads == "off":
        thread = event_id if threads == "always" and not (room.is_direct or related) else None
    media = tuple(files(event))
    return Inbound(
        event_id=event_id,
        message_id=event_id,
        sender=Sender(
            id=sender,
            name=room.members.get(sender) or sender,
            username=_SERVER_PART.sub("", sender).removeprefix("@"),
            is_bot=content.get("msgtype") == "m.notice",
        ),
        chat_id=room.id,
        chat_type="direct" if room.is_direct else "channel",
        chat_name=room.name,
        thread_id=thread,
        address=Address(room.id, thread),
        mentioned=is_mentioned(content, me),
        quote=quote,
        text=text_of(content, caption=bool(media)),
        media=media,
        at_ms=at if isinstance(at := event.get("origin_server_ts"), int) and 0 <= at < 2**53 else 0,
    )


def text_of(content: Json, *, caption: bool = False) -> str:
    """The text of a message; of a file its caption. Without the quote that old clients put before it."""
    body = str(content.get("body", ""))
    if caption and content.get("filename") in (None, body):
        return ""
    if replied_to(content) and body.startswith("> "):
        quoted, _, rest = body.partition("\n\n")
        body = rest if all(line.startswith(">") for line in quoted.split("\n")) and rest else body
    return body


def latest(event: Json) -> Json:
    """The content of a message after its last edit, which the homeserver adds to the event."""
    edits = _dict(_dict(_dict(event.get("unsigned")).get("m.relations")).get("m.replace"))
    return _dict(_dict(edits.get("content")).get("m.new_content")) or _dict(event.get("content"))


def is_mentioned(content: Json, me: str) -> bool:
    mentions = _dict(content.get("m.mentions"))
    users = mentions.get("user_ids")
    if (isinstance(users, list) and me in users) or mentions.get("room") is True:
        return True
    return any(me in str(content.get(name, "")) for name in ("body", "formatted_body"))


def files(event: Json) -> Iterator[Media]:
    """The file of a message, if it has one that can be fetched."""
    content = _dict(event.get("content"))
    kind = _KINDS.get(str(content.get("msgtype") or event.get("type")))
    encrypted = _dict(content.get("file"))
    url = encrypted.get("url") or content.get("url")
    if kind is None or not isinstance(url, str) or not _MXC.fullmatch(url):
        return
    ref = orjson.dumps(encrypted).decode() if encrypted else url
    info = _dict(content.get("info"))
    size = info.get("size")
    yield Media(
        ref=ref,
        kind=kind,
        name=str(content.get("filename") or content.get("body") or ""),
        mime_type=str(info.get("mimetype") or ""),
        size=size if isinstance(size, int) and size >= 0 else None,
    )


def media_parts(ref: str) -> tuple[str, str, Json | None] | None:
    """Where a file is: its server, its id, and its key if it is encrypted."""
    try:
        key = _dict(json_input.loads(ref)) if ref.startswith("{") else None
    except ValueError:
        return None
    found = _MXC.fullmatch(str(key.get("url")) if key is not None else ref)
    return (found[1], found[2], key) if found else None


def message(text: str) -> Json:
    """The content of a text message. It mentions nobody, whatever names are in it."""
    formatted = matrix_html(text)
    content: Json = {"msgtype": "m.text", "body": text, "m.mentions": {}}
    if formatted != text:
        content |= {"format": "org.matrix.custom.html", "formatted_body": formatted}
    return content


def file_message(part: Outgoing, url: str, size: int, key: Json | None = None) -> Json:
    """The content of a message with a file, and the key of it if it is encrypted."""
    assert part.file is not None
    mime = part.file.mime_type
    kind = mime.partition("/")[0]
    content = message(part.text) if part.text else {"body": part.file.name, "m.mentions": {}}
    return content | {
        "msgtype": f"m.{kind}" if kind in ("image", "audio", "video") else "m.file",
        "filename": part.file.name,
        "info": {"mimetype": mime, "size": size},
        **({"file": {**key, "url": url}} if key else {"url": url}),
    }


def relates_to(part: Outgoing) -> Json:
    """The relation of a message to a thread, and to the message it answers."""
    thread, reply = part.address.thread_id, part.reply_to
    answered = {"m.in_reply_to": {"event_id": reply or thread}}
    if thread:
        related = {"rel_type": "m.thread", "event_id": thread, "is_falling_back": reply is None, **answered}
        return {"m.relates_to": related}
    return {"m.relates_to": answered} if reply else {}


def edited(message_id: str, text: str) -> Json:
    """The content of an event that replaces the text of a message."""
    new = message(text)
    return {
        **new,
        "body": f"* {text}",
        "m.new_content": new,
        "m.relates_to": {"rel_type": "m.replace", "event_id": message_id},
    }


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}
