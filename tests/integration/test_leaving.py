"""Clients that leave, at any moment, are ordinary: the log has no traceback of it."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.test_wire import frame
from tests.integration.web import OWNER_TOKEN, web_of
from tests.waiting import LIMIT_S, until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from hobnob.testing import OWNER, script

MAIN = "agent:ann:main"
AUTH = f"Host: 127.0.0.1\r\nAuthorization: Bearer {OWNER_TOKEN}\r\n"


@pytest.fixture(autouse=True)
def no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [r.getMessage() for r in caplog.get_records("call") if r.exc_info] == []


def sending(name: str) -> int:
    """How many requests of a method are being answered."""
    return sum(task.get_name() == f"rpc {name}" for task in asyncio.all_tasks())


async def test_a_client_that_leaves_while_several_answers_are_sent_to_it(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        await web.gateway.sessions.create(OWNER, MAIN)
        for _ in range(20):
            await web.gateway.sessions.inject(OWNER, MAIN, "x" * 3000)
        async with connect(web.url.replace("http", "ws"), compression=None) as socket:
            await frame(socket)
            hello = {"minProtocol": 4, "maxProtocol": 4, "auth": {"token": OWNER_TOKEN}}
            await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": hello}))
            await frame(socket)
            page = {"type": "req", "id": "2", "method": "chat.history", "params": {"sessionKey": MAIN}}
            socket.transport.pause_reading()
            for _ in range(1000):  # more than the buffers between us hold
                await socket.send(json.dumps(page))
            await until(lambda: sending("chat.history") > 5)
            socket.transport.abort()
        await until(lambda: len(web.services.clients) == 0 and not sending("chat.history"))


async def test_a_caller_that_leaves_amid_its_body(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        _, writer = await web.raw(post("/rpc/health", "{}")[:-1])
        await until(lambda: requests() == 1)
        writer.close()
        await until(lambda: requests() == 0)


def requests() -> int:
    """How many requests over HTTP are being answered."""
    return sum("run_asgi" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_a_frame_that_is_no_text_ends_the_connection(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web, connect(web.url.replace("http", "ws"), compression=None) as socket:
        await frame(socket)
        socket.transport.write(b"\x81\x82" + bytes(4) + b"\xff\xfe")
        with pytest.raises(ConnectionClosed) as closed:
            await frame(socket)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1007


async def test_readers_and_waiting_callers_are_let_go_when_the_gateway_stops(tmp_path: Path) -> None:
    chat = json.dumps({"model": "hobnob", "stream": True, "messages": [{"role": "user", "content": "hi"}]})
    run = json.dumps({"params": {"message": "hi", "idempotencyKey": "k"}})
    slow = script({"text": "x", "delayMs": 600_000}, session="*")
    async with web_of(tmp_path, slow) as web:
        await web.gateway.sessions.create(OWNER, MAIN)
        opened = [
            await web.raw(f"GET /sessions/main/history?follow=1 HTTP/1.1\r\n{AUTH}\r\n".encode()),
            await web.raw(post("/v1/chat/completions", chat)),
            await web.raw(post("/rpc/agent", run)),
        ]
        await until(lambda: requests() == 3 and web.services.running_turns() == 2)
    async with asyncio.timeout(LIMIT_S):
        for reader, writer in opened:
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()


def post(path: str, body: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\n{AUTH}Content-Length: {len(body)}\r\n\r\n{body}".encode()
