"""Discord: a bot on the gateway and the REST API.

A client of our own, because the gateway session has to be kept in the store: a library that keeps it in
memory cannot resume it after a restart, and messages of that time would be lost. And rate limits have to
reach the pump, where libraries wait them out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson

from hobnob.channels import (
    Account,
    Capabilities,
    Channel,
    Disconnected,
    Identity,
    Inbox,
    NotNow,
    Outgoing,
    Undeliverable,
)
from hobnob.channels.discord import fields, messages
from hobnob.channels.discord.directory import Directory
from hobnob.channels.discord.markup import discord_text, length
from hobnob.channels.discord.receipts import Receipts, nonce
from hobnob.channels.discord.receiver import Receiver
from hobnob.channels.discord.rest import Refused, Rest
from hobnob.channels.http import Unanswered, download
from hobnob.inbound import Address, Media

TEXT_LIMIT = 2000
_NO_MENTIONS: dict[str, Any] = {"parse": []}
_REPLY_ANYWAY = {"fail_if_not_exists": False}
_SUPPRESS_EMBEDS = 1 << 2
_MESSAGE_CONTENT_GRANTED = 1 << 18 | 1 << 19
_UPLOAD_TIMEOUT_S = 55.0
_THREAD_NAME_CHARS = 100
_THREAD_MINUTES = 1440
_HAS_A_THREAD = 160004
_MAX_REACTIONS = 1000


def channel(account: Account) -> Channel:
    return DiscordChannel(account)


class DiscordChannel(Channel):
    capabilities = Capabilities(
        chat_types=("direct", "channel"),
        text_limit=TEXT_LIMIT,
        measure=length,
        threads=True,
        edits=True,
        deletes=True,
        reactions=True,
        typing_every_s=8.0,
        media_in=True,
        media_out=True,
        repeatable_s=120.0,
    )

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._rest = Rest(account)
        self._directory = Directory(self._rest)
        self._receipts = Receipts()
        self._receiver = Receiver(account, self._rest, self._directory, self._receipts)
        self._reactions: dict[tuple[str, str], str] = {}

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        await self._receiver.run(inbox, ready)

    async def send(self, part: Outgoing) -> str:
        channel_id = await self._channel_of(part.address)
        message: dict[str, Any] = {
            "content": discord_text(part.text),
            "nonce": nonce(part.key),
            "enforce_nonce": True,
            "allowed_mentions": _NO_MENTIONS,
        }
        if part.reply_to:
            message["message_reference"] = {"message_id": part.reply_to, **_REPLY_ANYWAY}
        if self.account.settings.suppress_embeds:
            message["flags"] = _SUPPRESS_EMBEDS
        self._receipts.begin(part.key)
        try:
            sent = await self._post(channel_id, message, part)
        except BaseException as error:
            seen = self._receipts.ended(part.key)
            if seen is None or not isinstance(error, Unanswered):
                raise
            sent = seen  # the answer was lost, but the message is there
        self._receipts.answered(part.key)
        return sent

    async def _post(self, channel_id: str, message: dict[str, Any], part: Outgoing) -> str:
        """Send a message, with its file as a form. Returns its id."""
        import aiohttp

        path = "/channels/{}/messages"
        if part.file is None:
            sent = await self._rest.call("POST", path, channel_id, json=message)
        else:
            name = "".join(filter(str.isprintable, part.file.name)) or "file"
            try:
                content = await asyncio.to_thread(part.file.path.open, "rb")
            except OSError as error:
                raise Undeliverable(f"The file {part.file.name} cannot be read: {error.strerror}.") from error
            with content:
                form = aiohttp.FormData(quote_fields=False)
                form.add_field(
                    "payload_json", orjson.dumps(message).decode(), content_type="application/json"
                )
                form.add_field("files[0]", content, filename=name, content_type=part.file.mime_type)
                sent = await self._rest.call("POST", path, channel_id, data=form, timeout_s=_UPLOAD_TIMEOUT_S)
        return _id(sent)

    async def edit(self, address: Address, message_id: str, text: str) -> None:
        change = {"content": discord_text(text), "allowed_mentions": _NO_MENTIONS}
        await self._on_message("PATCH", address, message_id, json=change)

    async def delete(self, address: Address, message_id: str) -> None:
        try:
            await self._on_message("DELETE", address, message_id)
        except Refused as refused:
            if refused.status != 404:
                raise

    async def react(self, address: Address, message_id: str, emoji: str | None) -> None:
        channel_id = await self._channel_of(address)
        before = self._reactions.pop((channel_id, message_id), None)
        path = "/channels/{}/messages/{}/reactions/{}/@me"
        if emoji is not None:
            emoji = emoji.strip("<>").removeprefix("a:").removeprefix(":")  # <:name:id> is one of a server
            await self._rest.call("PUT", path, channel_id, message_id, emoji)
            self._reactions[channel_id, message_id] = emoji
            if len(self._reactions) > _MAX_REACTIONS:
                del self._reactions[next(iter(self._reactions))]
            unwanted = [before] if before not in (None, emoji) else []
        else:
            unwanted = (
                [before] if before else messages.own_reactions(await self._message(channel_id, message_id))
            )
        for name in filter(None, unwanted):
            with contextlib.suppress(Refused):  # it is gone already
                await self._rest.call("DELETE", path, channel_id, message_id, name)

    async def typing(self, address: Address) -> None:
        await self._rest.call("POST", "/channels/{}/typing", await self._channel_of(address))

    async def can_open_thread(self, address: Address) -> str | None:
        if address.to.startswith("user:"):
            return "Discord has no threads in direct chats."
        if address.thread_id is not None:
            return "Discord has no threads inside threads."
        try:
            chat = await self._directory.chat(await self._channel_of(address))
        except (Disconnected, Undeliverable, NotNow) as error:
            return f"Discord did not say whether the channel can have threads: {error}"
        return None if chat.may_have_threads else "This kind of channel has no threads for messages."

    async def open_thread(self, address: Address, title: str, root_message_id: str | None) -> str:
        """Open a thread at a message, or one by itself if there is no message or it has a thread already."""
        channel_id = await self._channel_of(address)
        name = " ".join(title.split())[:_THREAD_NAME_CHARS] or "Thread"
        thread = {"name": name, "auto_archive_duration": _THREAD_MINUTES}
        if root_message_id is not None:
            path = "/channels/{}/messages/{}/threads"
            try:
                return _id(await self._rest.call("POST", path, channel_id, root_message_id, json=thread))
            except Refused as refused:
                if refused.code != _HAS_A_THREAD and refused.status != 404:
                    raise
        chat = await self._directory.chat(channel_id)
        thread["type"] = chat.thread_type
        return _id(await self._rest.call("POST", "/channels/{}/threads", channel_id, json=thread))

    async def fetch(self, media: Media, limit: int) -> AsyncIterator[bytes]:
        channel_id, message_id, attachment_id = media.ref.split("/")
        url = messages.attachment_url(await self._message(channel_id, message_id), attachment_id)
        if url is None:
            raise Undeliverable("The message no longer has the file.")
        async for piece in download(self.account.http(), url, limit):
            yield piece

    async def probe(self) -> Identity:
        me = await self._receiver.identity()
        application = await self._receiver.ask("/applications/@me")
        flags = application.get("flags")
        wanted = self.account.settings.intents.message_content
        if wanted and isinstance(flags, int) and not flags & _MESSAGE_CONTENT_GRANTED:
            return Identity(
                me.id, me.name, "the Message Content Intent is off in the developer portal, under Bot"
            )
        return me

    async def _channel_of(self, address: Address) -> str:
        try:
            return await self._directory.channel_of(address, self._rest.call)
        except (Unanswered, ValueError) as error:  # opening a direct chat twice has no second effect
            raise Undeliverable(f"The direct chat could not be opened: {error}", again=True) from error

    async def _on_message(self, method: str, address: Address, message_id: str, **request: Any) -> Any:
        channel_id = await self._channel_of(address)
        return await self._rest.call(method, "/channels/{}/messages/{}", channel_id, message_id, **request)

    async def _message(self, channel_id: str, message_id: str) -> Any:
        try:
            return await self._rest.fetch("GET", "/channels/{}/messages/{}", channel_id, message_id)
        except Disconnected as error:
            raise Undeliverable(f"The message could not be fetched: {error}", again=True) from error


def _id(answer: Any) -> str:
    try:
        return fields.id_of(fields.dict_of(answer), "id")
    except ValueError as error:
        raise Unanswered(f"Discord answered with something unexpected: {error}.") from error
