"""The history of a session over HTTP: a page, or a stream that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from hobnob.api import frames
from hobnob.api.web import Payload, Visit, route
from hobnob.changes import Appended, Deleted, SessionChanged
from hobnob.errors import BadInput
from hobnob.sessions import views
from hobnob.types import Entry, Session

KEEPALIVE_S = 15.0
_PAGE = 200


@route("GET", "/sessions/{session_key:path}/history", scope="operator.read")
async def session_history(
    visit: Visit,
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
    sessions = visit.parts.sessions
    if cursor is not None and cursor.removeprefix("seq:").isdigit():
        cursor = views.cursor(int(cursor.removeprefix("seq:")))
    if not follow and "text/event-stream" not in visit.web.headers.get("accept", ""):
        page = await sessions.history(
            visit.operator, session_key, limit=limit, include_tools=include_tools, cursor=cursor
        )
        return page | {"hasMore": "nextCursor" in page}
    session = await sessions.resolve(visit.operator, session_key, verb="history")
    last = visit.web.headers.get("last-event-id", "")
    if last and not last.isdigit():
        raise BadInput("Last-Event-ID is the number of a message.")
    stream = Stream(visit, session, include_tools=include_tools)
    body = stream.run(limit, cursor, int(last) if last else None)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


class Stream:
    """A transcript as server-sent events. It ends when its reader falls behind; it may come back."""

    def __init__(self, visit: Visit, session: Session, *, include_tools: bool) -> None:
        self._visit = visit
        self._key = session.key
        self._tools = include_tools
        self._last = 0

    async def run(self, limit: int, cursor: str | None, after: int | None) -> AsyncIterator[bytes]:
        # Listening before reading: what is said in between is heard, and told once by its number.
        heard = self._visit.parts.hub.subscribe(everything=False)
        heard.follow(self._key)
        try:
            yield b"retry: 1000\n\n"
            if after is None:
                yield await self._begin(limit, cursor)
            else:
                self._last = after
                async for piece in self._missed():
                    yield piece
            while not heard.lagged:
                try:
                    async with asyncio.timeout(KEEPALIVE_S):
                        event = await heard.next()
                except TimeoutError:
                    yield b": keepalive\n\n"
                    continue
                match event:
                    case Appended(_, entry) if entry.seq > self._last:
                        self._last = entry.seq
                        yield self._message(entry)
                    case SessionChanged(_, "reset"):
                        self._last = 0
                        yield await self._begin(limit, None)
                    case Deleted():
                        return
        finally:
            heard.leave()

    async def _begin(self, limit: int, cursor: str | None) -> bytes:
        sessions, operator = self._visit.parts.sessions, self._visit.operator
        page = await sessions.history(
            operator, self._key, limit=limit, include_tools=self._tools, cursor=cursor
        )
        # Without tools the last message shown need not be the last there is.
        _, newest = await sessions.said_since(operator, self._key, _number(page), limit=_PAGE)
        if cursor is None:
            self._last = newest[-1].seq if newest else _number(page)
        page |= {"hasMore": "nextCursor" in page}
        return _event("history", page, self._last)

    async def _missed(self) -> AsyncIterator[bytes]:
        while True:
            _, entries = await self._visit.parts.sessions.said_since(
                self._visit.operator, self._key, self._last, limit=_PAGE
            )
            for entry in entries:
                self._last = entry.seq
                yield self._message(entry)
            if len(entries) < _PAGE:
                return

    def _message(self, entry: Entry) -> bytes:
        if entry.role == "toolResult" and not self._tools:
            return b""
        return _event("message", frames.message_of(self._key, entry), entry.seq)


def _number(page: dict[str, Any]) -> int:
    messages = page["messages"]
    return int(messages[-1]["seq"]) if messages else 0


def _event(name: str, payload: dict[str, Any], number: int) -> bytes:
    return b"event: %b\nid: %d\ndata: %b\n\n" % (name.encode(), number, orjson.dumps(payload))
