"""The history of a session over HTTP: pages, and a stream that loses and repeats nothing."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from tests.integration.helpers import create_sessions
from tests.integration.web import OWNER_TOKEN, READER, Web, web_of, withdraw_narrow_tokens
from tests.waiting import LIMIT_S, until

from hobnob.api import routing as web_module
from hobnob.api.routes import sessions as routes
from hobnob.store import Tx, entries
from hobnob.testing import OWNER
from hobnob.types import Session

KEY = "agent:ann:main"
PATH = "/sessions/main/history"


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with web_of(tmp_path) as found:
        yield found


def line(n: int) -> dict[str, Any]:
    return {"role": "user", "content": f"line {n}"}


def tool_result(n: int) -> dict[str, Any]:
    text = [{"type": "text", "text": f"result {n}"}]
    return {"role": "toolResult", "toolCallId": str(n), "toolName": "x", "content": text, "isError": False}


async def said(web: Web, session: Session, *messages: dict[str, Any]) -> None:
    def put(tx: Tx) -> None:
        for message in messages:
            entries.append(tx, session.session_id, message)

    await web.gateway.store.write(put)


async def session_with(web: Web, *messages: dict[str, Any]) -> Session:
    (session,) = await create_sessions(web.gateway, KEY)
    await said(web, session, *messages)
    return session


class Feed:
    """Events of a stream, one after the other."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._lines = response.content

    async def next(self) -> tuple[str, int, Any] | None:
        """Name, id and payload of the next event; None when the stream is over."""
        event: dict[str, str] = {}
        async with asyncio.timeout(LIMIT_S):
            while text := (await self._lines.readline()).decode():
                name, _, value = text.rstrip("\n").partition(": ")
                if name:
                    event[name] = value
                elif "data" in event:
                    return event["event"], int(event["id"]), orjson.loads(event["data"])
        return None


def opened(
    web: Web, query: str = "?follow=1", *, last: int | None = None, token: str = OWNER_TOKEN, **headers: str
) -> Any:
    more = {"Last-Event-ID": str(last)} if last is not None else {}
    return web.open("GET", PATH + query, token=token, headers=headers | more)


@pytest.mark.promise("gateway.http_history")
async def test_the_history_of_a_session_can_be_read_under_every_spelling_of_its_key(web: Web) -> None:
    session = await session_with(web, line(1), line(2))
    for key in ("main", "agent:ann:main", "agent%3Aann%3Amain", "AGENT:Ann:MAIN", session.session_id):
        answer = await web.ask("GET", f"/sessions/{key}/history", token=READER)
        assert (answer.status, answer.json["sessionKey"]) == (200, KEY), key
        assert [m["content"] for m in answer.json["messages"]] == ["line 1", "line 2"]
        assert answer.json["hasMore"] is False


@pytest.mark.promise("gateway.http_history_pages")
async def test_pages_hold_every_message_once(web: Web) -> None:
    await session_with(web, *map(line, range(1, 8)))
    for by in ("nextCursor", "number", "seq:number"):
        seen: list[int] = []
        cursor = ""
        while True:
            page = (await web.ask("GET", f"{PATH}?limit=3{cursor}")).json
            seen = [m["seq"] for m in page["messages"]] + seen
            if not page["hasMore"]:
                break
            first = page["messages"][0]["seq"]
            place = {"nextCursor": page["nextCursor"], "number": first, "seq:number": f"seq:{first}"}[by]
            cursor = f"&cursor={place}"
        assert seen == list(range(1, 8))


@pytest.mark.promise("gateway.http_history_tools")
async def test_tool_results_come_only_when_they_are_asked_for(web: Web) -> None:
    session = await session_with(web, line(1), tool_result(2), line(3))
    without = (await web.ask("GET", PATH)).json["messages"]
    assert [m["seq"] for m in without] == [1, 3]
    whole = (await web.ask("GET", f"{PATH}?includeTools=1")).json["messages"]
    assert [m["seq"] for m in whole] == [1, 2, 3]
    async with opened(web) as plain, opened(web, "?follow=1&includeTools=1") as tools:
        feeds = [Feed(plain), Feed(tools)]
        pages = [await feed.next() for feed in feeds]
        assert [[m["seq"] for m in page[2]["messages"]] for page in pages if page] == [[1, 3], [1, 2, 3]]
        await said(web, session, tool_result(4), line(5))
        assert (await feeds[0].next() or [0, 0])[1] == 5
        assert [(await feeds[1].next() or [0, 0])[1] for _ in range(2)] == [4, 5]


@pytest.mark.promise("gateway.http_history_follow")
@pytest.mark.parametrize(
    ("query", "headers"), [("?follow=1", {}), ("", {"Accept": "text/event-stream"})], ids=["follow", "accept"]
)
async def test_a_stream_begins_with_the_page_and_goes_on_with_what_is_said(
    web: Web, query: str, headers: dict[str, str]
) -> None:
    session = await session_with(web, line(1))
    async with opened(web, query, **headers) as response:
        assert response.content_type == "text/event-stream"
        feed = Feed(response)
        name, number, page = await feed.next() or pytest.fail("no page")
        assert (name, number, [m["seq"] for m in page["messages"]]) == ("history", 1, [1])
        await said(web, session, line(2))
        name, number, told = await feed.next() or pytest.fail("no message")
        assert (name, number, told["messageSeq"], told["sessionKey"]) == ("message", 2, 2, KEY)
        assert told["message"]["content"] == "line 2"


@pytest.mark.promise("gateway.http_history_follow", "gateway.http_history_resumes")
async def test_whoever_comes_back_gets_what_came_since_once_and_in_order(web: Web) -> None:
    session = await session_with(web, line(1))
    most, seen, last = 60, [], None

    async def write() -> None:
        for n in range(2, most + 1):
            await said(web, session, line(n))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        while last is None or last < most:
            async with opened(web, last=last) as response:
                feed = Feed(response)
                for _ in range(4):
                    name, last, payload = await feed.next() or pytest.fail("the stream ended")
                    rows = payload["messages"] if name == "history" else [payload["message"]]
                    seen += [row["seq"] for row in rows]
                    if last == most:
                        break
    assert seen == list(range(1, most + 1))


@pytest.mark.promise("gateway.http_history_resumes")
async def test_a_stream_that_begins_amid_writing_misses_nothing(web: Web) -> None:
    session = await session_with(web)
    stop = asyncio.Event()

    async def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            await said(web, session, line(n), tool_result(n))

    async def read() -> None:
        async with opened(web) as response:
            feed = Feed(response)
            _, _, page = await feed.next() or pytest.fail("no page")
            last = max((m["seq"] for m in page["messages"]), default=-1)
            _, number, _ = await feed.next() or pytest.fail("no message")
            assert number == last + 2  # between two lines there is a tool result

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        for _ in range(15):
            await asyncio.gather(*(read() for _ in range(4)))
        stop.set()


async def test_a_stream_from_an_older_page_tells_only_what_is_new(web: Web) -> None:
    session = await session_with(web, *map(line, range(1, 6)))
    async with opened(web, "?follow=1&cursor=3&limit=1") as response:
        feed = Feed(response)
        name, number, page = await feed.next() or pytest.fail("no page")
        assert (name, number, [m["seq"] for m in page["messages"]]) == ("history", 5, [2])
        await said(web, session, line(6))
        assert (await feed.next() or [0, 0])[1] == 6


async def test_a_reset_amid_a_stream_begins_it_anew(web: Web) -> None:
    await session_with(web, line(1), line(2))
    async with opened(web) as response:
        feed = Feed(response)
        await feed.next()
        again = await web.gateway.sessions.reset(OWNER, KEY)
        name, number, page = await feed.next() or pytest.fail("no page")
        assert (name, number, page["messages"], page["sessionId"]) == ("history", 0, [], again.session_id)
        await said(web, again, line(1))
        assert (await feed.next() or [0, 0])[:2] == ("message", 1)


async def test_whoever_comes_back_with_a_number_of_an_older_transcript_gets_the_new_one(web: Web) -> None:
    await session_with(web, line(1), line(2), line(3))
    again = await web.gateway.sessions.reset(OWNER, KEY)
    await said(web, again, line(1))
    async with opened(web, last=3) as response:
        name, number, page = await Feed(response).next() or pytest.fail("no page")
        assert (name, number, [m["seq"] for m in page["messages"]]) == ("history", 1, [1])


async def test_the_stream_of_a_deleted_session_ends(web: Web) -> None:
    await session_with(web, line(1))
    async with opened(web) as response:
        feed = Feed(response)
        await feed.next()
        await web.gateway.store.write(web.gateway.effects.delete_session, KEY)
        assert await feed.next() is None
    assert (await web.ask("GET", PATH + "?follow=1")).status == 404


@pytest.mark.promise("gateway.http_history_resumes")
async def test_a_reader_that_falls_behind_loses_its_stream_and_nothing_else(web: Web) -> None:
    session = await session_with(web, line(1))
    async with opened(web) as response:
        feed = Feed(response)
        _, last, _ = await feed.next() or pytest.fail("no page")
        await said(web, session, *map(line, range(2, 1502)))  # more at a time than are kept for one reader
        while (event := await feed.next()) is not None:
            assert event[1] == last + 1
            last = event[1]
    assert web.services.hub.lost == 1
    assert last < 1501
    async with opened(web, last=last) as response:
        feed = Feed(response)
        while last < 1501:
            event = await feed.next() or pytest.fail("the stream ended")
            assert event[1] == last + 1
            last = event[1]


async def test_a_reader_that_leaves_is_forgotten(web: Web) -> None:
    await session_with(web, line(1))
    async with opened(web) as response:
        await Feed(response).next()
        assert web.services.hub.by_topic
    await until(lambda: not web.services.hub.by_topic)


async def test_a_reader_that_takes_nothing_is_let_go(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_module, "STREAM_WRITE_TIMEOUT_S", 0.2)
    session = await session_with(web)
    request = f"GET {PATH}?follow=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {READER}\r\n\r\n"
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(("127.0.0.1", web.port))
        stuck.sendall(request.encode())
        await until(lambda: bool(web.services.hub.by_topic))
        while web.services.hub.by_topic:  # until nothing more goes into the socket, and then a moment
            await said(web, session, *[{"role": "user", "content": "x" * 4000}] * 100)
            await until(lambda: not web.services.hub.backlog or not web.services.hub.by_topic)
    assert web.services.hub.lost == 0  # its queue never ran over


async def test_a_quiet_stream_shows_that_it_is_there(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "KEEPALIVE_S", 0.02)
    await session_with(web)
    async with opened(web) as response, asyncio.timeout(LIMIT_S):
        while await response.content.readline() != b": keepalive\n":
            pass


async def test_a_place_that_is_no_number_is_refused(web: Web) -> None:
    await session_with(web)
    for place in ("x", "-1", "1.5", "²", "9" * 40, "seq:", "seq:²"):
        resumed = await web.ask("GET", PATH + "?follow=1", headers={"Last-Event-ID": place})
        paged = await web.ask("GET", f"{PATH}?cursor={place}")
        for answer in (resumed, paged):
            assert (answer.status, answer.json["error"]["code"]) == (400, "input.bad"), place


@pytest.mark.promise("access.secret_closes_what_it_opened")
async def test_a_stream_ends_when_its_token_is_withdrawn(web: Web) -> None:
    session = await session_with(web, line(1))
    async with opened(web, token=READER) as theirs, opened(web) as owners:
        reader, owner = Feed(theirs), Feed(owners)
        assert (await reader.next() or ("",))[0] == "history"
        assert (await owner.next() or ("",))[0] == "history"
        withdraw_narrow_tokens(web)
        assert web.services.clients.close_unless(web.services.auth.is_current, "withdrawn") == 1
        assert await reader.next() is None  # the end of the stream
        await said(web, session, line(2))
        assert (await owner.next() or ("", 0))[1] == 2


async def test_a_stream_sends_nothing_after_its_token_was_withdrawn(web: Web) -> None:
    """Also when nobody closes it: each message is checked after a reload."""
    session = await session_with(web, line(1))
    async with opened(web, token=READER) as response:
        feed = Feed(response)
        assert (await feed.next() or ("",))[0] == "history"
        withdraw_narrow_tokens(web)
        await said(web, session, line(2))
        assert await feed.next() is None


async def test_a_reader_that_comes_back_after_a_reset_gets_the_newest_page(web: Web) -> None:
    """Also when the address it comes back to has a cursor: that is one of the old transcript."""
    session = await session_with(web, *map(line, range(1, 13)))
    fresh = await web.gateway.sessions.reset(OWNER, session.key)
    await said(web, fresh, *map(line, range(1, 9)))
    async with opened(web, "?follow=1&limit=3&cursor=seq:5", last=12) as response:
        name, number, page = await Feed(response).next() or ("", 0, {})
        assert (name, number, [m["seq"] for m in page["messages"]]) == ("history", 8, [6, 7, 8])
