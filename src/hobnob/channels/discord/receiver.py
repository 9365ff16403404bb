"""Receives the messages of a Discord account: follows its gateway session, and fetches what it missed."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from hobnob.channels import Account, Disconnected, Identity, Inbox, KnownChat, Undeliverable
from hobnob.channels.discord import gateway, messages
from hobnob.channels.discord.directory import Directory
from hobnob.channels.discord.gateway import Connection, Dispatch, ReconnectAsked, Session, SessionOver
from hobnob.channels.discord.receipts import Receipts
from hobnob.channels.discord.rest import Refused, Rest
from hobnob.inbound import Inbound
from hobnob.records import replace

CATCH_UP_CHATS = 300
CATCH_UP_MS = 24 * 3600 * 1000
_SAVE_EVERY = 100  # events without a message, after which the position is stored all the same
_PAGE = 100
_log = logging.getLogger(__name__)


class Receiver:
    def __init__(self, account: Account, rest: Rest, directory: Directory, receipts: Receipts) -> None:
        self._account = account
        self._rest = rest
        self._directory = directory
        self._receipts = receipts
        self._me = Identity("")
        self._session: Session | None = None
        self._saved_seq = 0
        self._ended_session_id: str | None = None  # it may still be the one that is stored
        self._resume_url_failed = False

    async def identity(self) -> Identity:
        """Who the bot is. Raises LoginNeeded, Disconnected."""
        user = await self.ask("/users/@me")
        if not isinstance(user.get("id"), str):
            raise Disconnected("Discord did not say who the bot is")
        return Identity(user["id"], str(user.get("username") or ""))

    async def ask(self, path: str) -> dict[str, Any]:
        """An object of the API that there must be. Raises LoginNeeded, Disconnected."""
        try:
            answer = await self._rest.fetch("GET", path)
        except Refused as refused:  # for example because the address of the API is wrong
            raise Disconnected(f"{path} is not available: {refused}") from refused
        return answer if isinstance(answer, dict) else {}

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        """Receive until cancelled. The session is resumed if possible, also that of an earlier process."""
        self._inbox, self._ready = inbox, ready
        self._me = await self.identity()
        self._session = Session.from_cursor(await inbox.cursor(), self._rest.api_url)
        if self._session is not None and self._session.id == self._ended_session_id:
            self._session = None
        self._saved_seq = self._session.seq if self._session else 0
        while True:
            await self._connect()

    async def _connect(self) -> None:
        """Serve one connection. Returns when another one should be opened."""
        settings, session = self._account.settings, self._session
        connection = Connection(
            self._account.http(), self._rest.token(), gateway.intents(settings.intents), self._handle
        )
        resumes_there = session is not None and not self._resume_url_failed
        url = session.resume_url if session is not None and resumes_there else await self._gateway_url()
        if not url.startswith("wss://") and self._rest.api_url.startswith("https://"):
            raise Disconnected("Discord named a gateway without encryption")  # the token must not go there
        try:
            await connection.run(url, session)
        except ReconnectAsked:
            if not connection.established:
                raise Disconnected("Discord asks to connect again") from None
            await _pause(0.0, 1.0)
        except SessionOver as over:
            if self._session is None:
                raise Disconnected("Discord did not accept a new session") from over
            _log.info("discord %s: the session is over, a new one begins", self._account.account_id)
            self._ended_session_id, self._session = self._session.id, None
            await _pause(1.0, 5.0)  # as Discord's documents demand
        finally:
            self._resume_url_failed = not connection.greeted

    async def _gateway_url(self) -> str:
        answer = await self.ask("/gateway/bot")
        limit, url = answer.get("session_start_limit"), answer.get("url")
        if isinstance(limit, dict) and limit.get("remaining") == 0 and self._session is None:
            raise Disconnected("the bot has started as many sessions as Discord permits in a day")
        if not isinstance(url, str):
            raise Disconnected("Discord did not name its gateway")
        return url

    async def _handle(self, batch: list[Dispatch]) -> None:
        """Store the messages of some events, together with the position after them."""
        found: list[Inbound] = []
        for event in batch:
            if event.name == "READY":
                await self._begin(event)
            elif event.name == "RESUMED":
                self._ready(self._me)
            elif event.name == "MESSAGE_CREATE":
                found += await self._translated(event.data)
            else:
                self._learn(event)
        if self._session is None:
            return
        session = replace(self._session, seq=batch[-1].seq)
        if found or session.seq - self._saved_seq >= _SAVE_EVERY:
            await self._inbox.accept(found, session.cursor())
            self._saved_seq = session.seq
        self._session = session  # not before the messages are stored: the session is resumed from here

    async def _begin(self, event: Dispatch) -> None:
        """Begin a new session. It is stored only when nothing before it is missing any more."""
        data = event.data if isinstance(event.data, dict) else {}
        session_id, resume_url = data.get("session_id"), data.get("resume_gateway_url")
        if not isinstance(session_id, str) or not isinstance(resume_url, str):
            raise Disconnected("Discord began a session without an id")
        self._ready(self._me)
        for chat in (await self._inbox.chats())[:CATCH_UP_CHATS]:
            try:
                await self._catch_up(chat)
            except (Undeliverable, ValueError) as problem:  # the bot has left it, for example
                _log.info("discord %s: messages of %s not fetched: %s", *self._names(chat), problem)
        self._session = Session(self._rest.api_url, session_id, resume_url, event.seq)
        await self._inbox.accept([], self._session.cursor())
        self._saved_seq = event.seq

    async def _catch_up(self, chat: KnownChat) -> None:
        """Fetch the messages after the newest one that is known, as far as they are not too old."""
        channel_id = await self._directory.channel_of(chat.address, self._rest.fetch)
        complete = await self._completer(chat, channel_id)
        after = messages.id_at(int(time.time() * 1000) - CATCH_UP_MS)
        if chat.last_event_id.isdigit():
            after = max(after, int(chat.last_event_id))
        while True:
            query = {"after": str(after), "limit": str(_PAGE)}
            answer = await self._rest.fetch("GET", "/channels/{}/messages", channel_id, params=query)
            page = messages.after(answer, after)
            found = [event for raw in page for event in await self._translated(await complete(raw))]
            if found:
                await self._inbox.accept(found)
            if len(page) < _PAGE:
                return
            after = int(page[-1]["id"])

    async def _completer(self, chat: KnownChat, channel_id: str) -> Callable[[Any], Awaitable[Any]]:
        """A function that adds to a fetched message what the same message has in an event."""
        guild_id = None
        if not chat.address.to.startswith("user:"):
            guild_id = (await self._directory.chat(channel_id)).guild_id
            if guild_id is None:  # without it the messages would look like those of a direct chat
                raise ValueError("the server of the channel is unknown")
        members: dict[str, Any] = {}

        async def complete(raw: dict[str, Any]) -> dict[str, Any]:
            author = raw.get("author")
            user_id: Any = author.get("id") if isinstance(author, dict) else None
            if guild_id is None:
                return raw
            if isinstance(user_id, str) and user_id not in members and user_id != self._me.id:
                members[user_id] = await self._directory.member(guild_id, user_id)
            return {**raw, "guild_id": guild_id, "member": members.get(user_id)}

        return complete

    async def _translated(self, raw: Any) -> list[Inbound]:
        """The message, if it is one for the inbox."""
        try:
            if messages.author_id(raw) == self._me.id:
                await self._receipts.on_own_message(raw, self._inbox)
                return []
            message = await messages.inbound(raw, self._me.id, self._directory)
        except (ValueError, TypeError) as problem:
            _log.warning("discord %s: malformed message skipped: %s", self._account.account_id, problem)
            return []
        if message is not None and message.chat_type == "direct":
            self._directory.learn_direct(message.sender.id, raw["channel_id"])
        return [message] if message is not None else []

    def _learn(self, event: Dispatch) -> None:
        try:
            self._directory.learn(event.name, event.data, self._me.id)
        except (ValueError, TypeError) as problem:
            _log.warning("discord %s: malformed %s skipped: %s", *self._names(event), problem)

    def _names(self, what: Dispatch | KnownChat) -> tuple[str, str]:
        return self._account.account_id, what.name if isinstance(what, Dispatch) else what.address.to


async def _pause(least_s: float, most_s: float) -> None:
    await asyncio.sleep(random.uniform(least_s, most_s))  # noqa: S311 - spreads the clients, no secret
