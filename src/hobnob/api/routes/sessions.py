"""`GET /sessions/{key}/history`: a page of a transcript, or a stream of it as server-sent events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

import orjson
from pydantic import Field
from starlette.responses import Response

from hobnob.api import event_frames
from hobnob.api.routing import EventStream, HttpCall, Payload, route
from hobnob.api.transcript_feed import TranscriptFeed
from hobnob.errors import BadInput
from hobnob.requests import HISTORY_DEFAULT, HISTORY_MAX, HistoryQuery
from hobnob.sessions import presentation
from hobnob.types import Entry, Session

KEEPALIVE_S = 15.0
_SEQ = re.compile(r"[0-9]{1,15}")


class HistoryPage(HistoryQuery):
    """A page of a transcript; numbers out of range are refused."""

    limit: Annotated[int, Field(ge=1, le=HISTORY_MAX)] = HISTORY_DEFAULT


@route("GET", "/sessions/{session_key:path}/history", scope="operator.read")
async def session_history(
    call: HttpCall, session_key: str, query: HistoryPage, follow: bool = False
) -> Payload | Response:
    """A page of a transcript, the newest one without a cursor. With `follow=1`, a stream of its messages.

    The stream begins with the page (`history`), then has a `message` for each new one. The `id` of an event
    is the message's number; a client that reconnects with it as `Last-Event-ID` gets the messages since.
    """
    sessions, headers = call.services.sessions, call.http.headers
    if query.cursor is not None and _SEQ.fullmatch(query.cursor.removeprefix("seq:")):
        cursor = presentation.encode_cursor(int(query.cursor.removeprefix("seq:")))
        query = query.model_copy(update={"cursor": cursor})
    if not follow and "text/event-stream" not in headers.get("accept", ""):
        page = await sessions.queries.history(call.operator, session_key, query)
        return page | {"hasMore": "nextCursor" in page}
    session = await sessions.resolve(call.operator, session_key, verb="history")
    last = headers.get("last-event-id", "")
    if last and not _SEQ.fullmatch(last):
        raise BadInput("Last-Event-ID is the number of a message.")
    call.account.take("streams")
    stream = TranscriptStream(call, session, query)
    return EventStream(stream.run(int(last) if last else None), call.account)


class TranscriptStream:
    """A transcript as server-sent events. It ends when the reader lags or its credential is withdrawn."""

    def __init__(self, call: HttpCall, session: Session, query: HistoryQuery) -> None:
        self._services = call.services
        self.principal = call.principal
        self._query = query
        self._subscription = call.services.hub.subscribe(topics_only=True)
        self._feed = TranscriptFeed(call.services, call.principal, session.key)
        self._closed = False

    def close(self, code: int, reason: str) -> None:
        """End the stream: its credential was withdrawn."""
        self._closed = True
        self._subscription.wake()

    async def run(self, after: int | None) -> AsyncGenerator[bytes]:
        # Follow before reading: what is appended in between is queued, and sent once by its number. This is
        # not in the constructor, because a generator that never starts is never closed.
        self._subscription.follow(self._feed.session_key)
        self._services.clients.streams.add(self)
        try:
            yield b"retry: 1000\n\n"
            if after is None:
                yield await self._history_page()
            else:
                async for piece in self._resume(after):
                    yield piece
            while not self._subscription.lagged and not self._closed:
                try:
                    async with asyncio.timeout(KEEPALIVE_S):
                        event = await self._subscription.next()
                except TimeoutError:
                    yield b": keepalive\n\n"
                    continue
                news = self._feed.take(event) if event is not None else None
                if isinstance(news, Entry):
                    yield self._message(news)
                elif news == "gap":
                    async for entry in self._feed.catch_up():
                        yield self._message(entry)
                elif news == "reset":
                    yield await self._restart()
                elif news == "ended":
                    return
        finally:
            self._subscription.close()
            self._services.clients.streams.discard(self)

    async def _resume(self, after: int) -> AsyncIterator[bytes]:
        """Continue after a message number. A transcript that does not reach it, or is reset, starts anew."""
        operator, feed = self.principal.operator, self._feed
        session, last = await self._services.sessions.queries.last_position(operator, feed.session_key)
        if after > last:
            yield await self._restart()
            return
        feed.session_id, feed.seq = session.session_id, after
        async for entry in feed.catch_up():
            if feed.session_id != session.session_id:
                break
            yield self._message(entry)
        if feed.session_id != session.session_id:
            yield await self._restart()

    async def _restart(self) -> bytes:
        """The newest page of a transcript the client has not seen: a cursor of the old one means nothing."""
        self._query = self._query.model_copy(update={"cursor": None})
        return await self._history_page()

    async def _history_page(self) -> bytes:
        queries, operator, feed = self._services.sessions.queries, self.principal.operator, self._feed
        session, last = await queries.last_position(operator, feed.session_key)
        page = await queries.history(operator, feed.session_key, self._query)
        feed.session_id = page["sessionId"]
        # Without tool results, the last message shown need not be the last there is; and a page of older
        # messages ends before the newest. What is appended from now on is sent.
        shown = _last_number(page) if self._query.cursor is None else 0
        feed.seq = max(shown, last if session.session_id == feed.session_id else 0)
        return _event("history", page | {"hasMore": "nextCursor" in page}, feed.seq)

    def _message(self, entry: Entry) -> bytes:
        if entry.role == "toolResult" and not self._query.include_tools:
            return b""
        payload = event_frames.message_payload(self._feed.session_key, entry)
        return _event("message", payload, entry.seq)


def _last_number(page: dict[str, Any]) -> int:
    messages = page["messages"]
    return int(messages[-1]["seq"]) if messages else 0


def _event(name: str, payload: dict[str, Any], number: int) -> bytes:
    return b"event: %b\nid: %d\ndata: %b\n\n" % (name.encode(), number, orjson.dumps(payload))
