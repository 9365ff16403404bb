"""A fake of `signal-cli`, made from its documents: JSON-RPC over a socket, over HTTP, and as a program.

The program only passes lines between its pipes and the socket, so everything is decided here. Messages that
arrive while nobody has subscribed wait, as they do at Signal while no `signal-cli` is connected.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

from aiohttp import web

BOT = "+15550001000"
BOT_UUID = "b0b0b0b0-0000-4000-8000-000000001000"
GROUP = "Zm9yIFRlc3RzIE9ubHkhISE/IQ=="

PROGRAM = """#!{python} -S
import os, socket, sys, threading
assert "jsonRpc" in sys.argv and "manual" in sys.argv, sys.argv
peer = socket.socket(socket.AF_UNIX)
peer.connect({path!r})
def pass_on():
    while data := os.read(0, 65536):
        peer.sendall(data)
    os._exit(0)
threading.Thread(target=pass_on, daemon=True).start()
while data := peer.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
"""


class FakeSignal:
    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="signal-"))  # paths of sockets must be short
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self.socket = self._folder / "socket"
        self.program = self._folder / "signal-cli"
        self.program.write_text(PROGRAM.format(python=sys.executable, path=str(self.socket)))
        self.program.chmod(0o700)
        self.accounts = [BOT]
        self.sent: list[dict[str, Any]] = []
        """The parameters of `send`, with the `timestamp` it got."""
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}
        self.failures: list[dict[str, Any]] = []
        """Errors with which the next messages are answered."""
        self.lose_receipts = 0
        self.scanned = asyncio.Event()
        """Set when the person has scanned the code."""
        self.news = asyncio.Condition()
        self._clock = 0
        self._server: asyncio.Server | None = None
        self._web: web.AppRunner | None = None
        self._port = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._subscribed: dict[asyncio.StreamWriter, int] = {}
        self._streams: list[web.StreamResponse] = []
        self._ending = asyncio.Event()
        self._waiting: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_unix_server(self._serve, self.socket)
            routes = web.Application()
            routes.add_routes([web.post("/api/v1/rpc", self._post), web.get("/api/v1/events", self._events)])
            self._web = web.AppRunner(routes, shutdown_timeout=0)
            await self._web.setup()
            site = web.TCPSite(self._web, "127.0.0.1", self._port)
            await site.start()
            self._port = self._web.addresses[0][1]

    async def stop(self) -> None:
        if self._server is not None and self._web is not None:
            self._server.close()
            self._server = None
            self.socket.unlink(missing_ok=True)
            self.end_connections()
            await self._web.cleanup()
            self._web = None

    def end_connections(self) -> None:
        """`signal-cli` dies."""
        self._subscribed.clear()
        for writer in self._open:
            writer.transport.abort()
        self._streams.clear()
        self._ending.set()
        self._ending = asyncio.Event()

    def stamp(self) -> int:
        """The time of a message, in milliseconds: no two have the same."""
        self._clock = max(self._clock + 1, int(time.time() * 1000))
        return self._clock

    async def until(self, condition: Any) -> None:
        async with self.news:
            await self.news.wait_for(condition)

    async def receive(self, envelope: dict[str, Any]) -> None:
        """A message arrives for the bot."""
        self._waiting.append({"envelope": envelope, "account": BOT})
        await self._flush()

    async def _flush(self) -> None:
        while self._waiting and (self._subscribed or self._streams):
            params = self._waiting.pop(0)
            for writer, number in self._subscribed.items():
                wrapped = {"subscription": number, "result": params}
                writer.write(_line({"jsonrpc": "2.0", "method": "receive", "params": wrapped}))
            for stream in self._streams:
                await stream.write(f"event:receive\ndata:{json.dumps(params)}\n\n".encode())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with contextlib.suppress(ConnectionError):
                while line := await reader.readline():
                    request = json.loads(line)
                    if (
                        request["method"] == "subscribeReceive"
                        and request["params"]["account"] in self.accounts
                    ):
                        self._subscribed[writer] = len(self._subscribed)
                        writer.write(_line({"jsonrpc": "2.0", "result": 0, "id": request["id"]}))
                        await self._flush()
                    elif (answer := await self._answer(request)) is None:
                        writer.transport.abort()
                    else:
                        writer.write(_line(answer))
        finally:
            self._subscribed.pop(writer, None)
            self._open.discard(writer)
            writer.close()

    async def _post(self, request: web.Request) -> web.StreamResponse:
        answer = await self._answer(await request.json())
        if answer is None:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        return web.json_response(answer)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        await stream.write(b":\n")
        self._streams.append(stream)
        await self._flush()
        await self._ending.wait()
        assert request.transport is not None
        request.transport.close()
        return stream

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a call; None if it is lost."""
        method, params = request["method"], request.get("params") or {}
        self.calls.append((method, params))
        reply = {"jsonrpc": "2.0", "id": request["id"]}
        if method not in ("version", "listAccounts", "startLink", "finishLink"):
            if params.get("account") not in self.accounts:
                return reply | {"error": {"code": -32602, "message": "Specified account does not exist"}}
        if method == "send":
            if self.failures:
                return reply | {"error": self.failures.pop(0)}
            stamp = self.stamp()
            self.sent.append(params | {"timestamp": stamp})
            async with self.news:
                self.news.notify_all()
            if self.lose_receipts:
                self.lose_receipts -= 1
                return None
            return reply | {"result": {"timestamp": stamp, "results": [{"type": "SUCCESS"}]}}
        async with self.news:
            self.news.notify_all()
        match method:
            case "version":
                return reply | {"result": {"version": "0.13.19"}}
            case "listAccounts":
                return reply | {"result": [{"number": number} for number in self.accounts]}
            case "getAttachment":
                return reply | {"result": {"data": base64.b64encode(self.files[params["id"]]).decode()}}
            case "startLink":
                return reply | {"result": {"deviceLinkUri": "sgnl://linkdevice?uuid=abc&pub_key=def"}}
            case "finishLink":
                await self.scanned.wait()
                self.accounts.append(BOT)
                return reply | {"result": {"number": BOT}}
            case "sendTyping" | "sendReaction" | "deleteLocalAccountData":
                return reply | {"result": {}}
        return reply | {"error": {"code": -32601, "message": "Method not implemented"}}


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
