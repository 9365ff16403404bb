"""What is known about the chats of a bot: channels, threads, direct chats, and the bot's own roles."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from hobnob.channels import Undeliverable
from hobnob.channels.discord import fields
from hobnob.channels.discord.rest import Refused, Rest
from hobnob.inbound import Address
from hobnob.records import Struct

_THREADS = {10, 11, 12}
_TEXT, _ANNOUNCEMENTS = 0, 5
_ANNOUNCEMENT_THREAD, _PUBLIC_THREAD = 10, 11
_MAX_CHATS = 20_000
_ADDRESS = re.compile(r"(?:discord:)?(?:(?P<kind>user|channel):)?(?P<id>[0-9]{1,20})")
_CHAT_EVENTS = {"CHANNEL_CREATE", "CHANNEL_UPDATE", "THREAD_CREATE", "THREAD_UPDATE"}

Request = Callable[..., Awaitable[Any]]


class Chat(Struct, frozen=True):
    """A channel or thread of a server."""

    id: str
    type: int = _TEXT
    name: str = ""
    parent_id: str | None = None
    guild_id: str | None = None

    @property
    def is_thread(self) -> bool:
        return self.type in _THREADS and self.parent_id is not None

    @property
    def may_have_threads(self) -> bool:
        return self.type in (_TEXT, _ANNOUNCEMENTS)

    @property
    def thread_type(self) -> int:
        """The type of the threads that are opened in it."""
        return _ANNOUNCEMENT_THREAD if self.type == _ANNOUNCEMENTS else _PUBLIC_THREAD


class Directory:
    """The chats by id. What events did not tell is looked up once."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._chats: dict[str, Chat] = {}
        self._direct: dict[str, str] = {}
        self._own_roles: dict[str, frozenset[str]] = {}

    def learn(self, event: str, data: Any, own_id: str) -> None:
        """Take over what an event says. Raises ValueError if it is malformed."""
        if event == "GUILD_CREATE":
            guild_id = fields.id_of(fields.dict_of(data), "id")
            for raw in [*fields.dicts(data, "channels"), *fields.dicts(data, "threads")]:
                self._add(raw, guild_id)
            self._own_roles[guild_id] = _own_roles(fields.dicts(data, "roles"), own_id)
        elif event in _CHAT_EVENTS:
            self._add(fields.dict_of(data))
        elif event == "THREAD_LIST_SYNC":
            for raw in fields.dicts(data, "threads"):
                self._add(raw, data.get("guild_id"))
        elif event in ("CHANNEL_DELETE", "THREAD_DELETE"):
            self._chats.pop(fields.id_of(fields.dict_of(data), "id"), None)
        elif event.startswith("GUILD_ROLE_"):
            self._own_roles.pop(fields.id_of(fields.dict_of(data), "guild_id"), None)

    def learn_direct(self, user_id: str, channel_id: str) -> None:
        _put(self._direct, user_id, channel_id)

    async def chat(self, chat_id: str) -> Chat:
        """A channel or thread; one that the bot may not look up has only its id. Raises Disconnected."""
        if (known := self._chats.get(chat_id)) is not None:
            return known
        try:
            return self._add(fields.dict_of(await self._rest.fetch("GET", "/channels/{}", chat_id)))
        except (Refused, ValueError):
            return Chat(chat_id)

    async def channel_of(self, address: Address, request: Request) -> str:
        """The id under which Discord has a chat or thread. A direct chat is opened with `request`."""
        parts = _ADDRESS.fullmatch(address.to)
        if parts is None:
            raise Undeliverable(f"{address.to!r} is no chat of Discord: use channel:<id> or user:<id>.")
        if address.thread_id is not None:
            return address.thread_id
        target: str = parts["id"]
        if parts["kind"] != "user":
            return target
        if (known := self._direct.get(target)) is None:
            opened = await request("POST", "/users/@me/channels", json={"recipient_id": target})
            known = fields.id_of(fields.dict_of(opened), "id")
            self.learn_direct(target, known)
        return known

    async def own_roles(self, guild_id: str, own_id: str) -> frozenset[str]:
        """The role that Discord made for the bot: people mention it, because it has the bot's name."""
        if guild_id not in self._own_roles:
            try:
                roles = {"roles": await self._rest.fetch("GET", "/guilds/{}/roles", guild_id)}
            except Refused:
                roles = {}
            self._own_roles[guild_id] = _own_roles(fields.dicts(roles, "roles"), own_id)
        return self._own_roles[guild_id]

    async def member(self, guild_id: str, user_id: str) -> Any:
        """The name and roles of a person in a server; None if it has left."""
        try:
            return await self._rest.fetch("GET", "/guilds/{}/members/{}", guild_id, user_id)
        except Refused:
            return None

    def _add(self, raw: dict[str, Any], guild_id: Any = None) -> Chat:
        kind, parent_id = raw.get("type"), raw.get("parent_id")
        guild_id = raw.get("guild_id", guild_id)
        chat = Chat(
            fields.id_of(raw, "id"),
            kind if isinstance(kind, int) else _TEXT,
            str(raw.get("name") or ""),
            parent_id if isinstance(parent_id, str) else None,
            guild_id if isinstance(guild_id, str) else None,
        )
        _put(self._chats, chat.id, chat)
        return chat


def _put(known: dict[str, Any], key: str, value: Any) -> None:
    """Add an entry as the newest; the oldest one goes if there are too many."""
    known.pop(key, None)
    known[key] = value
    if len(known) > _MAX_CHATS:
        del known[next(iter(known))]


def _own_roles(roles: list[dict[str, Any]], own_id: str) -> frozenset[str]:
    tagged = [(role.get("id"), role.get("tags")) for role in roles]
    return frozenset(str(i) for i, tags in tagged if isinstance(tags, dict) and tags.get("bot_id") == own_id)
