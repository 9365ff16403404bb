"""The history of a session over HTTP: a page, or a stream that goes on."""

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
from hobnob.errors import BadInput
from hobnob.events import EntryAppended, SessionChanged, SessionDeleted
from hobnob.sessions import presentation
from hobnob.types import Entry, Session

KEEPALIVE_S = 15.0
_PAGE = 200
_SEQ = re.compile(r"[0-9]{1,15}")


@route("GET", "/sessions/{session_key:path}/history", scope="operator.read")
async def session_history(
    visit: HttpCall,
    session_key: str,
    limit: Annotated[int, Field(ge=1, le=1000)] = 200,
    cursor: str | None = None,
    include_tools: bool = False,
    follow: bool = False,
) -> Payload | Response:
    """A page of a transcript, the newest without a cursor. With `follow=1`, a stream of what is said.

    The stream begins with the page (`history`), then has a `message` for each that is added; its `id` is the
    message's number, and whoever comes back with it as `Last-Event-ID` gets what came since.
    """
    sessions = visit.services.sessions
    if cursor is not None and _SEQ.fullmatch(cursor.removeprefix("seq:")):
        cursor = presentation.encode_cursor(int(cursor.removeprefix("seq:")))
    if not follow and "text/event-stream" not in visit.web.headers.get("accept", ""):
        page = await sessions.history(
            visit.operator, session_key, limit=limit, include_tools=include_tools, cursor=cursor
        )
        return page | {"hasMore": "nextCursor" in page}
    session = await sessions.resolve(visit.operator, session_key, verb="history")
    last = visit.web.headers.get("last-event-id", "")
    if last and not _SEQ.fullmatch(last):
        raise BadInput("Last-Event-ID is the number of a message.")
    stream = TranscriptStream(visit, session, include_tools=include_tools)
    return EventStream(stream.run(limit, cursor, int(last) if last else None))


class TranscriptStream:
    """A transcript as server-sent events. It ends when its reader falls behind; it may come back."""

    def __init__(self, visit: HttpCall, session: Session, *, include_tools: bool) -> None:
        self._visit = visit
        self._key = session.key
        self._tools = include_tools
        self._session_id = ""  # of the transcript that is told
        self._last = 0  # of its messages, what was told or is not wanted

    async def run(self, limit: int, cursor: str | None, after: int | None) -> AsyncGenerator[bytes]:
        # Listening before reading: what is said in between is heard, and told once by its number.
        heard = self._visit.services.hub.subscribe(everything=False)
        heard.follow(self._key)
        try:
            yield b"retry: 1000\n\n"
            if after is None:
                yield await self._begin(limit, cursor)
            else:
                async for piece in self._resume(limit, after):
                    yield piece
            while not heard.lagged:
                try:
                    async with asyncio.timeout(KEEPALIVE_S):
                        event = await heard.next()
                except TimeoutError:
                    yield b": keepalive\n\n"
                    continue
                match event:
                    case EntryAppended(_, entry) if self._is_new(entry):
                        self._last = entry.seq
                        yield self._message(entry)
                    case SessionChanged(_, "reset"):
                        yield await self._begin(limit, None)
                    case SessionDeleted():
                        return
        finally:
            heard.close()

    def _is_new(self, entry: Entry) -> bool:
        return entry.session_id == self._session_id and entry.seq > self._last

    async def _begin(self, limit: int, cursor: str | None) -> bytes:
        sessions, operator = self._visit.services.sessions, self._visit.operator
        session, end = await sessions.end_of(operator, self._key)
        page = await sessions.history(
            operator, self._key, limit=limit, include_tools=self._tools, cursor=cursor
        )
        self._session_id = page["sessionId"]
        # Without tools the last message shown need not be the last there is; and a page of older ones ends
        # before what was there when it was asked for. What came since then is told, not left out.
        same = session.session_id == self._session_id
        self._last = max(_number(page) if cursor is None else 0, end if same else 0)
        page |= {"hasMore": "nextCursor" in page}
        return _event("history", page, self._last)

    async def _resume(self, limit: int, after: int) -> AsyncIterator[bytes]:
        """What came after a message. A number the transcript does not reach is of one before it."""
        sessions, operator = self._visit.services.sessions, self._visit.operator
        session, end = await sessions.end_of(operator, self._key)
        if after > end:
            yield await self._begin(limit, None)
            return
        self._session_id, self._last = session.session_id, after
        while True:
            session_id, entries = await sessions.said_since(operator, self._key, self._last, limit=_PAGE)
            if session_id != self._session_id:  # it was reset just now, which will be heard
                return
            for entry in entries:
                self._last = entry.seq
                yield self._message(entry)
            if len(entries) < _PAGE:
                return

    def _message(self, entry: Entry) -> bytes:
        if entry.role == "toolResult" and not self._tools:
            return b""
        return _event("message", event_frames.message_payload(self._key, entry), entry.seq)


def _number(page: dict[str, Any]) -> int:
    messages = page["messages"]
    return int(messages[-1]["seq"]) if messages else 0


def _event(name: str, payload: dict[str, Any], number: int) -> bytes:
    return b"event: %b\nid: %d\ndata: %b\n\n" % (name.encode(), number, orjson.dumps(payload))
