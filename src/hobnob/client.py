"""A client of the gateway: connect, call, listen. The command line and programs use it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from hobnob import __version__
from hobnob.errors import GatewayUnreachable, RpcFailed
from hobnob.types import new_id

Payload = dict[str, Any]
_ANSWERED_TWICE = ("agent",)


class Client:
    """One connection. Answers find their requests by id; events go to `events`, None when it is over."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._answers: dict[str, asyncio.Queue[Payload]] = {}
        self.events: asyncio.Queue[Payload | None] = asyncio.Queue()
        self.hello: Payload = {}

    async def call(self, method: str, **params: Any) -> Payload:
        """The last answer of a method. Raises RpcFailed."""
        answers = [payload async for payload in self.answers(method, **params)]
        return answers[-1]

    async def answers(self, method: str, **params: Any) -> AsyncIterator[Payload]:
        """All answers of a method, as they come: `agent` has two."""
        request_id = new_id()
        queue = self._answers[request_id] = asyncio.Queue()
        try:
            frame = {"type": "req", "id": request_id, "method": method, "params": params}
            await self._socket.send(orjson.dumps(frame).decode())
            while True:
                answer = await queue.get()
                if not answer.get("ok"):
                    raise failure(answer)
                yield answer["payload"]
                if method not in _ANSWERED_TWICE or answer["payload"].get("status") != "accepted":
                    return
        finally:
            self._answers.pop(request_id, None)

    async def run(self) -> None:
        """Read frames until the connection closes; whoever still waits hears of it."""
        try:
            async for text in self._socket:
                frame = orjson.loads(text)
                if frame.get("type") == "res" and frame.get("id") in self._answers:
                    self._answers[frame["id"]].put_nowait(frame)
                elif frame.get("type") == "event":
                    self.events.put_nowait(frame)
        except ConnectionClosed:
            pass  # told below, to everybody
        gone = {"ok": False, "error": {"code": "UNAVAILABLE", "message": "the gateway closed the connection"}}
        for queue in self._answers.values():
            queue.put_nowait(gone)
        self.events.put_nowait(None)


@asynccontextmanager
async def open_client(url: str, token: str) -> AsyncIterator[Client]:
    """Connect to the gateway at `url`. Raises GatewayUnreachable or RpcFailed."""
    try:
        socket = await connect(url, max_size=None, open_timeout=5, compression=None)
    except (OSError, TimeoutError, WebSocketException) as error:
        raise GatewayUnreachable(
            f"No gateway answers at {url}: {error}.", fix="Start one with `hobnob serve`."
        ) from error
    async with socket:
        client = Client(socket)
        reading = asyncio.create_task(client.run(), name="client")
        try:
            client.hello = await client.call(
                "connect",
                minProtocol=3,
                maxProtocol=4,
                client={"id": "cli", "version": __version__, "platform": "python", "mode": "cli"},
                role="operator",
                auth={"token": token},
            )
            yield client
        finally:
            reading.cancel()


def failure(answer: Payload) -> RpcFailed:
    """What an answer that is not ok says."""
    error = answer.get("error") or {}
    details = error.get("details") or {}
    message = str(error.get("message", "the gateway refused"))
    return RpcFailed(message, reason=details.get("code"), fix=details.get("fix"))
