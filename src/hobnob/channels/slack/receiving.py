"""Receive messages: read envelopes, store their messages, acknowledge them, and catch up after a gap."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from hobnob.channels import Account, Disconnected, Inbox, KnownChat, LoginNeeded, NotNow, Undeliverable
from hobnob.channels.http import Unanswered
from hobnob.channels.slack import events
from hobnob.channels.slack.directory import Directory
from hobnob.channels.slack.events import Me
from hobnob.channels.slack.socket import Connection, ReconnectRequested
from hobnob.channels.slack.web_api import WebApi, messages_of
from hobnob.inbound import Inbound

_QUEUE = 200  # envelopes that are read before the first is stored; then reading stops
_BATCH = 100  # messages of one transaction
_REMEMBERED = 5_000  # ids of messages that were stored
_DRAIN_S = 10.0  # how long a connection that was replaced is still read
_MAX_LIMIT_S = 60.0
_CATCH_UP_S = 10.0
_CATCH_UP_CHATS = 40
_CATCH_UP_AGE_S = 24 * 3600
_CATCH_UP_PAGE = 200
_AT_ONCE = 4
_log = logging.getLogger(__name__)

Envelope = tuple[Connection, dict[str, Any]]


class Receiver:
    """One run of an account, from sign-in to the loss of the connection."""

    def __init__(self, account: Account, api: WebApi, directory: Directory, me: Me, inbox: Inbox) -> None:
        self._account = account
        self._api = api
        self._directory = directory
        self._me = me
        self._inbox = inbox
        self._arrived: asyncio.Queue[Envelope] = asyncio.Queue(_QUEUE)
        self._stored: dict[str, None] = {}

    async def run(self, ready: Callable[[], None]) -> None:
        """Receive until the connection is lost. Raises Disconnected, LoginNeeded, and errors of the inbox."""
        connection = await self._connect()
        if connection.others:
            _log.info("the Slack app has another connection: if it is not an old one, it takes messages away")
        try:
            async with _first_error(), asyncio.TaskGroup() as tasks:
                tasks.create_task(self._store(), name="slack store")
                tasks.create_task(self._receive(connection, ready, tasks), name="slack receive")
        finally:
            await connection.close()

    async def _connect(self) -> Connection:
        return await Connection.open(self._account.http(), await self._api.open_connection())

    async def _receive(
        self, connection: Connection, ready: Callable[[], None], tasks: asyncio.TaskGroup
    ) -> None:
        """Read envelopes. When Slack asks for a new connection, it is open before the old one is closed."""
        try:
            while True:
                ready()
                with suppress(ReconnectRequested):
                    await self._read(connection)
                old, connection = connection, await self._connect()
                tasks.create_task(self._drain(old), name="slack drain")
        finally:
            await connection.close()

    async def _read(self, connection: Connection) -> None:
        async with aclosing(connection.envelopes()) as envelopes:
            async for envelope in envelopes:
                if self._is_new(_event(envelope)):
                    await self._arrived.put((connection, envelope))
                else:
                    await connection.acknowledge(envelope["envelope_id"])

    def _is_new(self, event: dict[str, Any]) -> bool:
        """Whether there is something to store. Slack sends a message again if it was acknowledged late."""
        return events.is_message(event, self._me) and events.id_of(event) not in self._stored

    async def _drain(self, old: Connection) -> None:
        """Read the rest of a connection that was replaced, so that it is acknowledged where it came from."""
        try:
            with suppress(ReconnectRequested, Disconnected, TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    await self._read(old)
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    await self._arrived.join()
        finally:
            await old.close()

    async def _store(self) -> None:
        """Store what arrived, as much as there is in one transaction, and acknowledge it afterwards."""
        await self._catch_up()
        while True:
            batch = [await self._arrived.get()]
            while len(batch) < _BATCH and not self._arrived.empty():
                batch.append(self._arrived.get_nowait())
            await self._accept([_event(envelope) for _, envelope in batch])
            for connection, envelope in batch:
                await connection.acknowledge(envelope["envelope_id"])
                self._arrived.task_done()

    async def _accept(self, found: Iterable[dict[str, Any]]) -> None:
        """Store the messages among some events."""
        if messages := await self._inbound([event for event in found if self._is_new(event)]):
            await self._inbox.accept(messages)
        self._stored |= dict.fromkeys(message.event_id for message in messages)
        while len(self._stored) > _REMEMBERED:
            del self._stored[next(iter(self._stored))]

    async def _inbound(self, written: Sequence[dict[str, Any]]) -> list[Inbound]:
        """Messages with the names of their people and conversations."""
        people = {user for event in written for user in events.people(event)}
        conversations = {channel for event in written for channel in events.conversations(event)}
        names = await self._directory.names(people, conversations)
        messages = []
        for event in written:
            try:
                message = events.inbound(event, self._me, names)
            except events.Malformed as error:
                _log.warning("message from Slack skipped: %s", error)
                continue
            if message.chat_type == "direct":
                self._directory.remember_direct(message.sender.id, event["channel"])
            messages.append(message)
        return messages

    async def _catch_up(self) -> None:
        """Ask for what was written while there was no connection, in the chats that are known."""
        chats = (await self._inbox.chats())[:_CATCH_UP_CHATS]
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                for start in range(0, len(chats), _AT_ONCE):
                    found = await asyncio.gather(*map(self._missed, chats[start : start + _AT_ONCE]))
                    await self._accept(event for chat in found for event in chat)
        except (NotNow, Unanswered, TimeoutError) as error:
            _log.warning("messages missed on Slack may stay unread: %s", str(error) or "it took too long")

    async def _missed(self, chat: KnownChat) -> Sequence[dict[str, Any]]:
        """The messages of a chat after the newest known one, oldest first, at most a day old."""
        if (place := events.place_of(chat.last_event_id)) is None:
            return []
        channel, newest = place
        oldest = max(newest, f"{time.time() - _CATCH_UP_AGE_S:.6f}", key=float)
        method = "conversations.replies" if chat.thread_id else "conversations.history"
        try:
            answer = await self._api.call(
                method, channel=channel, ts=chat.thread_id, oldest=oldest, limit=_CATCH_UP_PAGE
            )
        except Undeliverable as refused:  # it was left, archived or deleted, or a scope is missing
            _log.info("messages of %s not read: %s", channel, refused)
            return []
        found = [m | {"channel": channel} for m in messages_of(answer) if m.get("ts") != chat.thread_id]
        return sorted(found, key=lambda message: str(message.get("ts")))


@asynccontextmanager
async def _first_error() -> AsyncIterator[None]:
    """Raise the most important error of a task group by itself, as a reason to connect again or to stop."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = next((e for e in group.exceptions if isinstance(e, LoginNeeded)), group.exceptions[0])
        if isinstance(error, NotNow):
            await asyncio.sleep(min(error.after_s, _MAX_LIMIT_S))
        if isinstance(error, NotNow | Undeliverable | Unanswered):
            raise Disconnected(str(error)) from error
        raise error from None


def _event(envelope: dict[str, Any]) -> dict[str, Any]:
    """The event of an envelope; empty if it has none, as with slash commands."""
    payload = envelope.get("payload")
    event = payload.get("event") if isinstance(payload, dict) else None
    return event if isinstance(event, dict) else {}
