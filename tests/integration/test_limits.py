"""What strangers can do to the gateway: little, and not for long."""

import asyncio
import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_wire import client_of, frame, served
from tests.waiting import LIMIT_S
from uvicorn.protocols.websockets import websockets_sansio_impl
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.server import ServerProtocol

from hobnob.api import uvicorn_protocols
from hobnob.client import open_client
from hobnob.errors import RpcFailed, UnsupportedVersion


def limits(**changed: Any) -> dict[str, Any]:
    return {"gateway": {"port": 0, "limits": changed}}


async def closed(socket: ClientConnection) -> tuple[int, str]:
    """The code and the reason it was closed with."""
    with pytest.raises(ConnectionClosed) as over:
        while True:
            await frame(socket)
    assert over.value.rcvd is not None
    return over.value.rcvd.code, over.value.rcvd.reason


async def test_a_large_first_frame_ends_the_connection_before_it_is_read(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, token), connect(url, compression=None) as socket:
        await frame(socket)
        params = {"auth": {"token": token}, "filler": "x" * 70_000}
        await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": params}))
        assert (await closed(socket))[0] == 1009


async def test_the_header_of_a_large_first_frame_is_enough_to_end_the_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, _), connect(url, compression=None) as socket:
        await frame(socket)
        text, masked_with_8_byte_length, mask = 0x81, 0xFF, bytes(4)
        socket.transport.write(struct.pack("!BBQ", text, masked_with_8_byte_length, 20_000_000) + mask)
        assert (await closed(socket))[0] == 1009


@pytest.mark.parametrize("broken", ["first", "raised"])
async def test_a_server_whose_frame_limits_do_not_hold_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """As with versions of the two packages that have the limit elsewhere."""
    if broken == "first":
        unlimited = lambda **more: ServerProtocol(**more | {"max_size": None})  # noqa: E731
        monkeypatch.setattr(websockets_sansio_impl, "ServerProtocol", unlimited)
    else:
        monkeypatch.setattr(uvicorn_protocols.WebSocketProtocol, "set_max_frame", lambda *_: None)
    with pytest.raises(UnsupportedVersion, match=r"do not hold with uvicorn [\d.]+ and websockets [\d.]+"):
        async with served(tmp_path):
            pass


async def test_whoever_is_let_in_may_send_large_frames(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        answer = await client.call("agent", message="say " + "x" * 1_000_000, idempotencyKey="k")
        assert len(answer["result"]["payloads"][0]["text"]) == 1_000_000


async def test_who_does_not_sign_in_is_let_go(tmp_path: Path) -> None:
    async with served(tmp_path, limits(signInSeconds=1)) as (url, _), connect(url) as socket:
        assert await closed(socket) == (1008, "no connect in time")


@pytest.mark.promise("access.wrong_secrets_are_slowed")
async def test_wrong_secrets_are_counted_on_this_machine_too(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, token):
        async with open_client(url, token) as inside:
            for _ in range(10):
                with pytest.raises(RpcFailed, match="the token is wrong"):
                    async with open_client(url, "wrong"):
                        pass
            with pytest.raises(RpcFailed, match="Too many wrong secrets") as refused:
                async with open_client(url, token):  # a right one tells nothing either
                    pass
            assert refused.value.reason == "AUTH_RATE_LIMITED"
            assert (await inside.call("health"))["ok"] is True


async def test_a_connection_of_another_role_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, token), connect(url) as socket:
        await frame(socket)
        params = {"role": "captain", "auth": {"token": token}}
        await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": params}))
        assert "unauthorized role: captain" in (await frame(socket))["error"]["message"]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 5_000 + "1" + "}" * 5_000, '"\\ud800"', "nan"])
async def test_json_that_cannot_be_read_ends_the_connection_and_nothing_else(
    tmp_path: Path, text: str
) -> None:
    async with served(tmp_path) as (url, token):
        async with connect(url, compression=None) as socket:
            await frame(socket)
            hello = {"minProtocol": 4, "maxProtocol": 4, "auth": {"token": token}}
            await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": hello}))
            await frame(socket)
            await socket.send(text)
            assert (await closed(socket))[0] == 1008
        async with open_client(url, token) as client:
            assert (await client.call("health"))["ok"] is True


async def test_half_a_request_is_not_waited_for(tmp_path: Path) -> None:
    async with served(tmp_path, limits(signInSeconds=1)) as (url, _):
        host, port = url.removeprefix("ws://").split(":")
        for begun in (b"", b"GET /healthz HTTP/1.1\r\nHost:"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(begun)
            async with asyncio.timeout(LIMIT_S):
                assert await reader.read() == b""
            writer.close()


async def test_a_second_request_that_stops_half_way_is_not_waited_for_either(tmp_path: Path) -> None:
    async with served(tmp_path, limits(signInSeconds=1)) as (url, _):
        host, port = url.removeprefix("ws://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\n")
        async with asyncio.timeout(LIMIT_S):
            assert (await reader.read()).count(b'"ok":true') == 1
        writer.close()


async def test_a_flood_of_requests_is_answered_each(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        answers = await asyncio.gather(*(client.call("health") for _ in range(500)))
        assert all(answer["ok"] for answer in answers)


async def test_a_head_without_end_is_not_read_to_the_end(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, _):
        host, port = url.removeprefix("ws://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                writer.write(b"X-Filler: " + b"x" * 4000 + b"\r\n")
                await writer.drain()
                if reader.at_eof():
                    break
        async with asyncio.timeout(LIMIT_S):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        assert writer.transport.is_closing() or reader.at_eof()
        writer.close()


async def test_a_body_nobody_reads_does_not_hold_the_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, _):
        host, port = url.removeprefix("ws://").split(":")
        for head in (b"POST /rpc/health", b"GET /healthz"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\nx")
            async with asyncio.timeout(LIMIT_S):
                assert (await reader.read()).startswith(b"HTTP/1.1 ")  # answered, and over
            writer.close()


async def test_whoever_pings_and_does_not_read_is_cut_off(tmp_path: Path) -> None:
    ping = b"\x89\xf8" + bytes(4) + b"x" * 120  # of 120 bytes, with a mask that changes nothing
    async with served(tmp_path) as (url, _):
        socket = await connect(url, compression=None)
        await frame(socket)
        socket.transport.pause_reading()
        sent = 0
        async with asyncio.timeout(LIMIT_S):
            while not socket.transport.is_closing() and sent < 2_000_000:
                socket.transport.write(ping * 100)
                sent += 100
                await asyncio.sleep(0)
        assert socket.transport.is_closing()
        socket.transport.abort()
