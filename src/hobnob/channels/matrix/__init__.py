"""The channel `matrix`: a client of the client-server API.

The position in the stream of events (`since`) is stored together with the messages, so that a crash neither
loses nor doubles one. The key of a part is the transaction id of its event: the homeserver takes it once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson

from hobnob.channels import (
    Account,
    Capabilities,
    Channel,
    Identity,
    Inbox,
    NotNow,
    Outgoing,
    Undeliverable,
)
from hobnob.channels.http import Unanswered, download, reconnecting
from hobnob.channels.matrix import events as content
from hobnob.channels.matrix.api import CLIENT, Api, Refused
from hobnob.channels.matrix.e2e import Crypto
from hobnob.channels.matrix.events import Json
from hobnob.channels.matrix.rooms import Rooms
from hobnob.inbound import Address, Inbound, Media, Quote

_POLL_S = 30.0
_TIMELINE = 50
_MOST_MISSED = 1_000
_TYPING_S = 6.0
_QUOTE_CHARS = 2_000
_MOST_REACTIONS = 500
_KEY_TRIES = 3
_MOST_UNDECRYPTED = 200
_log = logging.getLogger(__name__)


class Matrix(Channel):
    capabilities = Capabilities(
        chat_types=("direct", "channel"),
        text_limit=4000,
        threads=True,
        edits=True,
        deletes=True,
        reactions=True,
        typing_every_s=_TYPING_S,
        media_in=True,
        media_out=True,
        repeatable_s=math.inf,
    )

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._api = Api(account)
        self._rooms = Rooms(self._api)
        self._timeline = _TIMELINE
        self._reactions: dict[tuple[str, str], str] = {}
        self._unreadable: set[str] = set()
        self._crypto: Crypto | None = None
        self._undecrypted: list[tuple[str, Json, int]] = []

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        try:
            login = await self._api.sign_in()
            if self._api.settings.encryption:  # its keys are uploaded before it joins a room
                self._crypto = await Crypto.open(login, self.account.folder)
            await self._receive(inbox, ready)
        except (Undeliverable, Unanswered, NotNow) as error:
            raise reconnecting(error) from error
        finally:
            if self._crypto is not None:
                crypto, self._crypto = self._crypto, None
                await crypto.close()

    async def _receive(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        first = await self._sync(None, content.first_filter())
        self._rooms.received(first)
        since = await inbox.cursor()
        if since is None:
            since = str(first["next_batch"])
            await self._take_keys(first)
            await inbox.accept([], since)
        ready(await self.probe())
        while True:
            await self._rooms.accept_invitations()
            sync = await self._next(since)
            self._rooms.received(sync)
            await self._take_keys(sync)
            messages = await self._messages(sync, since)
            if messages or sync["next_batch"] != since:
                since = str(sync["next_batch"])
                await inbox.accept(messages, since)

    async def _next(self, since: str) -> Json:
        """The next sync. After one that could not be read, fewer messages are asked for at a time."""
        try:
            sync = await self._sync(since, content.sync_filter(self._timeline))
        except Unanswered:
            self._timeline = max(1, self._timeline // 5)
            raise
        except Refused as error:
            if error.status != 400:
                raise
            _log.warning("Matrix: the position in the stream is not valid; messages may be missed: %s", error)
            return await self._sync(None, content.first_filter())
        self._timeline = _TIMELINE
        return sync

    async def _sync(self, since: str | None, chosen: Json) -> Json:
        query = {"filter": orjson.dumps(chosen).decode()}
        query |= {"since": since, "timeout": str(int(_POLL_S * 1000))} if since else {"timeout": "0"}
        sync = await self._api.call("GET", CLIENT, "sync", params=query, timeout_s=2 * _POLL_S)
        if not isinstance(sync.get("next_batch"), str):
            raise Unanswered("The answer to a sync has no position.")
        return sync

    async def _take_keys(self, sync: Json) -> None:
        if self._crypto is not None:
            await self._crypto.received(sync)

    async def _messages(self, sync: Json, since: str) -> list[Inbound]:
        found: list[Inbound] = []
        waiting, self._undecrypted = self._undecrypted, []
        for room_id, event, tries in waiting:
            if (message := await self._message(room_id, event, tries + 1)) is not None:
                found.append(message)
        joined: dict[str, Any] = (sync.get("rooms") or {}).get("join") or {}
        for room_id, data in joined.items():
            for event in await self._timeline_of(room_id, data.get("timeline") or {}, since):
                try:
                    message = await self._message(room_id, event)
                except (KeyError, TypeError, ValueError, AttributeError):
                    _log.warning("Matrix: malformed event in %s skipped", room_id, exc_info=True)
                    continue
                if message is not None:
                    found.append(message)
        return found

    async def _timeline_of(self, room_id: str, timeline: Json, since: str) -> list[Json]:
        """The new events of a room, oldest first. Those that a sync left out are fetched."""
        me = self._api.me.user_id
        events = [event for event in timeline.get("events") or [] if isinstance(event, dict)]
        if timeline.get("limited") is True:
            self._changed(room_id)
            if not content.has_joined(events, me):
                missed = await self._missed(room_id, timeline.get("prev_batch"), since)
                events = [*reversed(missed), *events]
        return content.since_invitation(events, me)

    async def _missed(self, room_id: str, start: Any, since: str) -> list[Json]:
        """The events between a sync and the beginning of the timeline of the next, newest first."""
        chosen = orjson.dumps({"types": content.TYPES}).decode()
        missed: list[Json] = []
        while isinstance(start, str):
            query = {"dir": "b", "from": start, "to": since, "limit": "100", "filter": chosen}
            page = await self._api.call("GET", CLIENT, "rooms", room_id, "messages", params=query)
            chunk = [event for event in page.get("chunk") or [] if isinstance(event, dict)]
            missed += chunk
            if not chunk or content.has_joined(chunk, self._api.me.user_id):
                break
            if len(missed) >= _MOST_MISSED:
                _log.warning(
                    "Matrix: over %d messages missed in %s; older ones skipped", _MOST_MISSED, room_id
                )
                break
            start = page.get("end")
        return missed

    async def _message(self, room_id: str, event: Json, tries: int = 0) -> Inbound | None:
        me = self._api.me.user_id
        if event.get("type") in content.CHANGES:
            self._changed(room_id)
        if event.get("type") == "m.room.encrypted" and event.get("sender") != me:
            event = self._decrypted(room_id, event, tries) or event
        if not content.is_message(event, me):
            return None
        room = await self._rooms.get(room_id)
        quote = await self._quote(room_id, content.replied_to(event["content"]))
        return content.inbound(event, room, me, self._api.settings.thread_replies, quote)

    def _decrypted(self, room_id: str, event: Json, tries: int) -> Json | None:
        """An event in clear. Without its key, which may come later, it is tried again after the next sync."""
        if self._crypto is None:
            if room_id not in self._unreadable:
                self._unreadable.add(room_id)
                _log.warning("Matrix: messages of the encrypted room %s cannot be read", room_id)
            return None
        if (clear := self._crypto.decrypt(room_id, event)) is None:
            if tries < _KEY_TRIES:
                self._undecrypted = [*self._undecrypted, (room_id, event, tries)][-_MOST_UNDECRYPTED:]
            else:
                _log.warning("Matrix: no key for a message in %s; it cannot be read", room_id)
        return clear

    def _changed(self, room_id: str) -> None:
        self._rooms.forget(room_id)
        if self._crypto is not None:
            self._crypto.members_changed(room_id)

    async def _quote(self, room_id: str, event_id: str | None) -> Quote | None:
        if event_id is None:
            return None
        try:
            event = await self._api.call("GET", CLIENT, "rooms", room_id, "event", event_id)
        except Refused:  # it was deleted, or is older than we are allowed to see
            return Quote(message_id=event_id)
        if event.get("type") == "m.room.encrypted" and self._crypto is not None:
            event = self._crypto.decrypt(room_id, event) or event
        sender, quoted = str(event.get("sender", "")), content.latest(event)
        room = await self._rooms.get(room_id)
        return Quote(
            message_id=event_id,
            sender_id=sender,
            sender_name=room.members.get(sender) or sender,
            text=content.text_of(quoted)[:_QUOTE_CHARS],
            own=sender == self._api.me.user_id,
        )

    async def send(self, part: Outgoing) -> str:
        room_id = _room_id(part.address)
        if part.file is None:
            message = content.message(part.text)
        else:
            message = await self._uploaded(part, await self._is_encrypted(room_id))
        message |= content.relates_to(part)
        return await self._put(room_id, "m.room.message", message, part.key)

    async def _put(self, room_id: str, kind: str, message: Json, transaction: str) -> str:
        if kind != "m.reaction" and await self._is_encrypted(room_id):  # reactions are always sent in clear
            assert self._crypto is not None
            members = (await self._rooms.get(room_id)).members
            kind, message = await self._crypto.encrypt(room_id, members, kind, message)
        path = ("rooms", room_id, "send", kind, transaction)
        return _event_id(await self._api.call("PUT", CLIENT, *path, json=message))

    async def _is_encrypted(self, room_id: str) -> bool:
        """Whether a room is encrypted. Raises Undeliverable if we cannot: nothing is sent in clear."""
        self._api.me  # noqa: B018 - raises if we are not connected
        is_encrypted = (await self._rooms.get(room_id)).is_encrypted
        if is_encrypted and self._crypto is None:
            if self._api.settings.encryption:
                raise NotNow("not connected yet", 1.0, scope="account")
            raise Undeliverable("The room is encrypted, and the setting encryption is false.")
        return is_encrypted

    async def _uploaded(self, part: Outgoing, encrypted: bool) -> Json:
        """Upload the file of a part. Done again on a retry: a file that no message shows does no harm."""
        assert part.file is not None
        query = {"filename": part.file.name}
        size = (await asyncio.to_thread(part.file.path.stat)).st_size
        if encrypted:
            assert self._crypto is not None
            plain = await asyncio.to_thread(part.file.path.read_bytes)
            data, key = await asyncio.to_thread(self._crypto.encrypt_file, plain)
            url = await self._upload(data, "application/octet-stream", {})
            return content.file_message(part, url, size, key)
        with await asyncio.to_thread(part.file.path.open, "rb") as file:
            return content.file_message(part, await self._upload(file, part.file.mime_type, query), size)

    async def _upload(self, data: Any, mime_type: str, query: dict[str, str]) -> str:
        headers = {"Content-Type": mime_type}
        path = ("_matrix/media/v3", "upload")
        answer = await self._api.call("POST", *path, params=query, headers=headers, data=data)
        url = answer.get("content_uri")
        if not isinstance(url, str):
            raise Unanswered("The answer to an upload has no address.")
        return url

    async def edit(self, address: Address, message_id: str, text: str) -> None:
        message = content.edited(message_id, text)
        await self._put(_room_id(address), "m.room.message", message, uuid.uuid4().hex)

    async def delete(self, address: Address, message_id: str) -> None:
        path = ("rooms", _room_id(address), "redact", message_id, uuid.uuid4().hex)
        await self._api.call("PUT", CLIENT, *path, json={})

    async def react(self, address: Address, message_id: str, emoji: str | None) -> None:
        room_id = _room_id(address)
        old = await self._reaction(room_id, message_id)
        if emoji is not None:
            related = {"rel_type": "m.annotation", "event_id": message_id, "key": emoji}
            new = await self._put(room_id, "m.reaction", {"m.relates_to": related}, uuid.uuid4().hex)
            self._reactions[room_id, message_id] = new
            while len(self._reactions) > _MOST_REACTIONS:
                del self._reactions[next(iter(self._reactions))]
        if old is not None:
            await self.delete(address, old)
            if emoji is None:
                self._reactions.pop((room_id, message_id), None)

    async def _reaction(self, room_id: str, message_id: str) -> str | None:
        """The event of our reaction to a message."""
        if (known := self._reactions.get((room_id, message_id))) is not None:
            return known
        path = ("_matrix/client/v1", "rooms", room_id, "relations", message_id, "m.annotation", "m.reaction")
        page = await self._api.call("GET", *path, params={"limit": "100"})
        for event in page.get("chunk") or []:
            if event.get("sender") == self._api.me.user_id:
                return str(event.get("event_id"))
        return None

    async def typing(self, address: Address) -> None:
        me = self._api.me.user_id
        state = {"typing": True, "timeout": int((_TYPING_S + 2) * 1000)}
        await self._api.call("PUT", CLIENT, "rooms", _room_id(address), "typing", me, json=state)

    async def can_open_thread(self, address: Address) -> str | None:
        return None

    async def open_thread(self, address: Address, title: str, root_message_id: str | None) -> str:
        """Begin a thread with a message of our own; one that is a reply could not be the root of a thread."""
        return await self._put(_room_id(address), "m.room.message", content.message(title), uuid.uuid4().hex)

    async def fetch(self, media: Media, limit: int) -> AsyncIterator[bytes]:
        parts = content.media_parts(media.ref)
        if parts is None:
            raise Undeliverable("The address of the file is not valid.")
        server, media_id, key = parts
        url = self._api.url("_matrix/client/v1", "media", "download", server, media_id)
        chunks = download(self.account.http(), url, limit, headers=self._api.authorization)
        if key is None:
            async for chunk in chunks:
                yield chunk
        else:
            if self._crypto is None:
                raise Undeliverable("The file is encrypted, and encryption is off.")
            encrypted = b"".join([chunk async for chunk in chunks])
            yield await asyncio.to_thread(self._crypto.decrypt_file, encrypted, key)

    async def probe(self) -> Identity:
        try:
            me = self._api.login or await self._api.sign_in()
            await self._api.call("GET", CLIENT, "account", "whoami")
            profile = await self._api.call("GET", CLIENT, "profile", me.user_id)
        except (Undeliverable, Unanswered, NotNow) as error:
            raise reconnecting(error) from error
        return Identity(me.user_id, str(profile.get("displayname") or ""), f"device {me.device_id}")

    async def logout(self) -> None:
        await self._api.sign_out()


def _room_id(address: Address) -> str:
    room_id = address.to.removeprefix("room:")
    if not room_id.startswith("!"):
        raise Undeliverable(f"{address.to!r} is not the id of a Matrix room, such as !abc:example.org.")
    return room_id


def _event_id(answer: Json) -> str:
    event_id = answer.get("event_id")
    if not isinstance(event_id, str):
        raise Unanswered("The answer has no event id.")
    return event_id


def channel(account: Account) -> Channel:
    return Matrix(account)
