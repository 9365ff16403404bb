"""Inbound chat messages, as every channel describes them. Ids are spelled as the platform spells them."""

from __future__ import annotations

from typing import Any, Literal

import orjson

from hobnob.keys import ChatType
from hobnob.records import Struct, asdict

MediaKind = Literal["image", "audio", "video", "file"]


class Sender(Struct, frozen=True, kw_only=True):
    """Who wrote a message. `id` never changes; names do, and anybody can take them."""

    id: str
    name: str = ""
    username: str = ""
    aliases: tuple[str, ...] = ()
    """Other ids of the same account, for example a phone number."""
    roles: tuple[str, ...] = ()
    is_bot: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.id, *self.aliases)


class Address(Struct, frozen=True):
    """Where an answer goes."""

    to: str
    thread_id: str | None = None


class Quote(Struct, frozen=True, kw_only=True):
    """The message that a message answers. `own`: the bot wrote it."""

    message_id: str
    sender_id: str = ""
    sender_name: str = ""
    text: str = ""
    own: bool = False


class Media(Struct, frozen=True, kw_only=True):
    """A file of a message. `ref` is what the channel needs to fetch it; the rest is a claim of the sender."""

    ref: str
    kind: MediaKind = "file"
    name: str = ""
    mime_type: str = ""
    size: int | None = None


class Inbound(Struct, frozen=True, kw_only=True):
    """A message from a chat.

    `event_id` is unique per channel account. `chat_id` and `thread_id` name the conversation in settings and
    session keys; `address` is where to answer. `mentioned`: whether the bot is addressed by a mention of the
    platform; None where the platform cannot tell. `space_id` is the guild or team of the chat.
    """

    event_id: str
    message_id: str
    sender: Sender
    chat_id: str
    chat_type: ChatType
    chat_name: str = ""
    space_id: str | None = None
    thread_id: str | None = None
    thread_word: Literal["thread", "topic"] = "thread"
    address: Address
    mentioned: bool | None = None
    quote: Quote | None = None
    text: str = ""
    media: tuple[Media, ...] = ()
    at_ms: int = 0
    unverified: str = ""
    """Why the sender is not proven, where anybody can claim any name. Such a message is refused."""

    @classmethod
    def of_text(cls, message_id: str, sender_id: str, text: str, *, group: str = "") -> Inbound:
        """A text that a person wrote to the bot, or in a group, where ids are also addresses."""
        chat = group or sender_id
        return cls(
            event_id=message_id,
            message_id=message_id,
            sender=Sender(id=sender_id),
            chat_id=chat,
            chat_type="group" if group else "direct",
            address=Address(chat),
            text=text,
        )

    def json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> Inbound:
        raw: dict[str, Any] = orjson.loads(text)
        sender = raw["sender"]
        raw["sender"] = Sender(
            **sender | {"aliases": tuple(sender["aliases"]), "roles": tuple(sender["roles"])}
        )
        raw["address"] = Address(**raw["address"])
        raw["quote"] = Quote(**raw["quote"]) if raw["quote"] else None
        raw["media"] = tuple(Media(**item) for item in raw["media"])
        return cls(**raw)
