"""Neither a stranger nor a narrow token can take the gateway from its owner."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import Gate, append_messages, create_sessions
from tests.integration.test_wire import frame
from tests.integration.web import OWNER_TOKEN, READER, WRITER, Web, web_of
from tests.waiting import LIMIT_S, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from hobnob.client import open_client
from hobnob.errors import RpcFailed
from hobnob.testing import calls, script

ANN = "agent:ann:main"


@asynccontextmanager
async def limited(
    home: Path, settings: dict[str, Any] | None = None, *, tools: Any = (), **limits: Any
) -> AsyncIterator[Web]:
    async with web_of(home, settings, tools=tools, gateway={"limits": limits}) as web:
        await create_sessions(web.gateway, ANN, "agent:ann:dashboard:1", "agent:ann:dashboard:2")
        yield web


class Raw:
    """A connection that sends bytes and reads lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def status(self) -> int:
        async with asyncio.timeout(LIMIT_S):
            return int((await self.reader.readline()).split()[1])

    async def rest(self) -> bytes:
        """What comes until the gateway closes."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(LIMIT_S):
                return await self.reader.read()
        return b""


@asynccontextmanager
async def crowd(web: Web, count: int, sent: bytes = b"") -> AsyncIterator[list[Raw]]:
    """So many connections, all open at the same time."""
    raws = [Raw(*await web.raw(sent)) for _ in range(count)]
    yield raws
    for raw in raws:
        raw.writer.transport.abort()


def get(path: str, token: str | None = None) -> bytes:
    auth = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{auth}\r\n".encode()


async def owner_gets_in(web: Web) -> None:
    """Over HTTP and over a WebSocket."""
    assert (await web.ask("GET", "/healthz", token=None)).status == 200
    listed = await web.ask("POST", "/rpc/sessions.list", {})
    assert listed.json["payload"]["count"] >= 3
    async with open_client(web.url.replace("http", "ws"), OWNER_TOKEN) as client:
        assert (await client.call("health"))["ok"] is True


# -- strangers


async def test_the_owner_gets_in_however_many_silent_strangers_are_there(tmp_path: Path) -> None:
    async with limited(tmp_path, unauthenticated=20) as web:
        async with crowd(web, 300):
            await owner_gets_in(web)
            assert len(web.services.budgets.strangers) <= 20


async def test_the_owner_gets_in_beside_two_thousand_strangers_with_the_default_limits(
    tmp_path: Path,
) -> None:
    async with limited(tmp_path) as web, crowd(web, 2005):
        await owner_gets_in(web)
        assert len(web.services.budgets.strangers) <= 256


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHost:", get("/healthz")])
async def test_the_owner_gets_in_beside_strangers_that_ask_for_something(tmp_path: Path, sent: bytes) -> None:
    async with limited(tmp_path, unauthenticated=20) as web, crowd(web, 100, sent):
        await owner_gets_in(web)


async def test_the_owner_gets_in_beside_strangers_that_open_a_websocket(tmp_path: Path) -> None:
    async with limited(tmp_path, unauthenticated=20) as web:
        url = web.url.replace("http", "ws")
        strangers = [await connect(url) for _ in range(60)]
        await owner_gets_in(web)
        for stranger in strangers:
            stranger.transport.abort()


async def test_who_has_signed_in_is_not_dropped_for_strangers(tmp_path: Path) -> None:
    async with limited(tmp_path, unauthenticated=5) as web:
        async with open_client(web.url.replace("http", "ws"), READER) as client, crowd(web, 50):
            assert (await client.call("health"))["ok"] is True
            assert client.events.qsize() <= 1  # it never had to come back


async def test_a_head_that_comes_drop_by_drop_is_not_waited_for(tmp_path: Path) -> None:
    async with limited(tmp_path, signInSeconds=1) as web:
        async with crowd(web, 1, b"GET /healthz HTTP/1.1\r\n") as [slow], asyncio.timeout(LIMIT_S):
            with contextlib.suppress(ConnectionError):
                while not slow.reader.at_eof():
                    slow.writer.write(b"X: y\r\n")
                    await slow.writer.drain()
                    await asyncio.sleep(0.02)
            assert await slow.rest() == b""


# -- pipelined requests


async def test_pipelined_requests_are_answered_one_after_the_other(tmp_path: Path) -> None:
    async with limited(tmp_path) as web:
        body = b'{"params": {"filler": 1}}'
        post = b"POST /rpc/health HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %b\r\n" % (
            OWNER_TOKEN.encode()
        )
        post += b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        async with crowd(web, 1, (get("/healthz") + post) * 200 + last) as [raw]:
            answers = await raw.rest()
        assert answers.count(b"HTTP/1.1 200") == 201
        assert answers.count(b"HTTP/1.1 400") == 200  # the method knows no filler


async def test_what_is_pipelined_behind_an_open_stream_is_not_read(tmp_path: Path) -> None:
    async with (
        limited(tmp_path) as web,
        crowd(web, 1, get("/sessions/main/history?follow=1", READER)) as [raw],
    ):
        assert await raw.status() == 200
        raw.writer.transport.set_write_buffer_limits(0)
        raw.writer.write(get("/healthz") * 500_000)  # 20 MB: more than the buffers between us hold
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await raw.writer.drain()
        assert running() <= 1


def running() -> int:
    return sum("run_asgi" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_many_connections_with_many_unread_requests_leave_the_owner_his(tmp_path: Path) -> None:
    async with limited(tmp_path, unauthenticated=100) as web:
        async with crowd(web, 200, get("/openapi.json") * 60):
            await owner_gets_in(web)


# -- one narrow token


async def test_event_streams_of_one_token_are_limited(tmp_path: Path) -> None:
    async with limited(tmp_path, streams=5) as web:
        path = "/sessions/main/history?follow=1"
        async with crowd(web, 5, get(path, READER)) as readers:
            for reader in readers:
                assert await reader.status() == 200
            refused = await web.ask("GET", path, token=READER)
            assert (refused.status, refused.json["error"]["code"]) == (429, "limit.streams")
            assert refused.json["error"]["fix"] == "Use fewer, or raise gateway.limits.streams."
            assert int(refused.headers["Retry-After"]) >= 1
            chat = {"model": "hobnob", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
            assert (await web.ask("POST", "/v1/chat/completions", chat, token=WRITER)).status == 200
            await owner_gets_in(web)
            async with web.open("GET", path) as of_owner:
                assert of_owner.status == 200
        await until(lambda: used(web, "streams") == {})
        async with web.open("GET", path, token=READER) as again:
            assert again.status == 200


def used(web: Web, resource: str) -> dict[str, int]:
    return {name: count for name, kind, count in web.services.budgets.usage() if kind == resource and count}


async def test_connections_of_one_token_are_limited(tmp_path: Path) -> None:
    async with limited(tmp_path, connections=5) as web:
        async with crowd(web, 5, get("/sessions/main/history?follow=1", READER)) as readers:
            for reader in readers:
                assert await reader.status() == 200
            async with crowd(web, 1, get("/v1/models", READER)) as [one_more]:
                answer = await one_more.rest()  # and it is closed
            assert answer.startswith(b"HTTP/1.1 429")
            assert b"limit.connections" in answer
            with pytest.raises(RpcFailed, match=r"may have 5 connections") as refused:
                async with open_client(web.url.replace("http", "ws"), READER):
                    pass
            assert refused.value.reason == "limit.connections"
            await owner_gets_in(web)


async def test_subscriptions_of_one_token_are_limited_over_all_its_sockets(tmp_path: Path) -> None:
    async with limited(tmp_path, subscriptions=2) as web:
        url = web.url.replace("http", "ws")
        async with open_client(url, READER) as first, open_client(url, READER) as second:
            await first.call("sessions.messages.subscribe", key=ANN)
            await first.call("sessions.messages.subscribe", key=ANN)  # the same again
            await second.call("sessions.messages.subscribe", key="agent:ann:dashboard:1")
            with pytest.raises(RpcFailed, match="2 subscriptions at a time") as refused:
                await second.call("sessions.messages.subscribe", key="agent:ann:dashboard:2")
            assert "gateway.limits.subscriptions" in str(refused.value.fix)
            await first.call("sessions.messages.unsubscribe", key=ANN)
            await second.call("sessions.messages.subscribe", key="agent:ann:dashboard:2")
        await until(lambda: used(web, "subscriptions") == {})


async def test_requests_of_one_token_are_worked_on_a_few_at_a_time(tmp_path: Path) -> None:
    """Those beyond wait, and beyond that are refused; requests that wait for a turn hold nobody up."""
    gate = Gate()
    settings = script(calls("hold"), "Done.")
    async with limited(tmp_path, settings, tools=(gate.tool,), requests=6, concurrentRequests=1) as web:
        async with open_client(web.url.replace("http", "ws"), WRITER) as client:
            async with asyncio.TaskGroup() as group:
                runs = [
                    group.create_task(client.call("agent", message="go", idempotencyKey=f"k{n}"))
                    for n in range(5)
                ]
                await gate.reached.wait()
                await until(lambda: used(web, "requests") == {"writer": 5})
                assert (await client.call("health"))["ok"] is True  # though five are waiting
                sixth = group.create_task(client.call("agent.wait", runId="k0", timeoutMs=60_000))
                await until(lambda: used(web, "requests") == {"writer": 6})
                with pytest.raises(RpcFailed, match="6 requests in flight") as refused:
                    await client.call("health")
                assert refused.value.reason == "limit.requests"
                over_http = await web.ask("POST", "/rpc/health", {}, token=WRITER)
                assert (over_http.status, over_http.json["error"]["code"]) == (429, "limit.requests")
                await owner_gets_in(web)
                gate.open.set()
            assert [run.result()["status"] for run in runs] == ["ok"] * 5
            assert sixth.result()["status"] == "ok"
        assert used(web, "requests") == {}


async def test_a_preview_reads_a_session_once_however_often_it_is_named(tmp_path: Path) -> None:
    async with limited(tmp_path) as web:
        params = {"keys": [ANN] * 64}
        answer = await web.ask("POST", "/rpc/sessions.preview", {"params": params}, token=READER)
        assert [row["key"] for row in answer.json["payload"]["previews"]] == [ANN]


async def test_the_owner_is_not_queued_behind_the_requests_of_a_token(tmp_path: Path) -> None:
    async with limited(tmp_path) as web:
        keys = [f"agent:ann:hook:{n}" for n in range(64)]
        for session in await create_sessions(web.gateway, *keys):
            await append_messages(web.gateway, session, *["x" * 500] * 20)
        url = web.url.replace("http", "ws")
        async with open_client(url, READER) as reader, open_client(url, OWNER_TOKEN) as owner:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(reader.call("sessions.preview", keys=keys)) for _ in range(300)]
                await until(lambda: used(web, "requests").get("reader", 0) > 150)
                answered = sum(task.done() for task in asked)
                listed = await owner.call("sessions.list")
                assert listed["count"] == 67
                assert sum(task.done() for task in asked) < answered + 50  # it did not wait for all of them
                for task in asked:
                    task.cancel()


# -- bytes


async def hello(web: Web, token: str) -> ClientConnection:
    socket = await connect(web.url.replace("http", "ws"), compression=None)
    await frame(socket)
    params = {"minProtocol": 4, "maxProtocol": 4, "auth": {"token": token}}
    await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": params}))
    assert (await frame(socket))["ok"] is True
    return socket


@pytest.mark.parametrize("token", [READER, OWNER_TOKEN])
async def test_bytes_of_unfinished_messages_are_limited(tmp_path: Path, token: str) -> None:
    async with limited(tmp_path, bytesInFlight=500_000) as web:
        sockets = [await hello(web, token) for _ in range(3)]
        begun = b"\x81\xff" + (400_000).to_bytes(8, "big") + bytes(4) + b"x" * 200_000
        for socket in sockets[:2]:
            socket.transport.write(begun)
        await until(lambda: sum(used(web, "bytes_in_flight").values()) >= 400_000)
        sockets[2].transport.write(begun)
        with pytest.raises(ConnectionClosed) as closed:
            await frame(sockets[2])
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        assert "gateway.limits.bytesInFlight" in closed.value.rcvd.reason
        for socket in sockets:
            socket.transport.abort()
        await until(lambda: used(web, "bytes_in_flight") == {})


async def test_bytes_of_bodies_are_limited(tmp_path: Path) -> None:
    async with limited(tmp_path, bytesInFlight=450_000) as web:
        head = f"POST /rpc/health HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {READER}\r\n"
        begun = f"{head}Content-Length: 400000\r\n\r\n".encode() + b"x" * 200_000
        async with crowd(web, 2, begun):
            await until(lambda: used(web, "bytes_in_flight").get("reader", 0) >= 400_000)
            small = f"{head}Connection: close\r\nContent-Length: 65600\r\n\r\n".encode() + b"x" * 65_600
            async with crowd(web, 1, small) as [one_more]:
                refused = await one_more.rest()
            assert refused.startswith(b"HTTP/1.1 429")
            assert b"limit.bytes_in_flight" in refused
        await until(lambda: used(web, "bytes_in_flight") == {})


# -- what is shown


async def test_status_and_metrics_show_what_is_used(tmp_path: Path) -> None:
    async with limited(tmp_path, streams=1) as web:
        async with crowd(web, 1, get("/sessions/main/history?follow=1", READER)) as [reader], crowd(web, 2):
            assert await reader.status() == 200
            assert (await web.ask("GET", "/sessions/main/history?follow=1", token=READER)).status == 429
            status = (await web.ask("POST", "/rpc/status", {})).json["payload"]["connections"]
            assert status["unauthenticated"] == 2
            assert status["credentials"]["reader"]["streams"] == 1
            shown = (await web.ask("GET", "/metrics")).json
            assert 'hobnob_in_use{credential="reader",resource="streams"} 1' in shown
            assert 'hobnob_limits_reached_total{limit="streams"} 1' in shown
            assert "hobnob_unauthenticated_connections 2" in shown
