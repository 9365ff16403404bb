"""A WebSocket client of the gateway, for the command line and for programs.

    async with open_client("ws://127.0.0.1:4626", token) as client:
        print((await client.ask("what is 6 * 7?")).text)
        async for message in client.follow("main", after=0): ...

`ask`, `wait` and `follow` reconnect and continue after a lost connection: `ask` repeats its idempotency key,
`follow` subscribes again after the last message it yielded. `call` and `answers` raise GatewayLost.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from hobnob import __version__
from hobnob.client_groups import CONCURRENCY, Group
from hobnob.errors import (
    ClientClosed,
    GatewayLost,
    GatewayUnreachable,
    HobnobError,
    RpcFailed,
    TurnFailed,
)
from hobnob.types import new_id

Payload = dict[str, Any]
T = TypeVar("T")
EVENTS = 10_000  # kept in `Client.events`; the oldest is dropped
MESSAGES = 1_000  # kept for each `follow`; more make it subscribe again
PATIENCE_S = 60.0  # how long lost connections are retried
_HANDSHAKE_TIMEOUT_S = 10.0
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.1, 2.0
_TWO_ANSWERS = ("agent",)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of an agent; `str(reply)` is its text, which is empty when it had nothing to say.

    `payload` is the answer of the method `agent` as it came.
    """

    text: str
    run_id: str
    session_key: str
    payload: Payload = field(repr=False)

    def __str__(self) -> str:
        return self.text


def _reply(payload: Payload) -> Reply:
    """The reply of a turn that ended. Raises TurnFailed."""
    if payload["outcome"] not in ("ok", "no_output"):
        raise TurnFailed(payload.get("error") or f"The turn ended as {payload['outcome']}.")
    text = "\n".join(part["text"] for part in payload["result"]["payloads"])
    return Reply(text, payload["runId"], payload["sessionKey"], payload)


class Client:
    """One connection. Events are queued in `events`, with a None when the connection is lost."""

    def __init__(self, url: str, token: str, *, patience_s: float = PATIENCE_S) -> None:
        self._url = url
        self._token = token
        self._patience_s = patience_s
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._connect_lock = asyncio.Lock()
        self._closed = False
        self._answers: dict[str, asyncio.Queue[Payload]] = {}
        self._feeds: set[_Feed] = set()
        self.on_lost: Callable[[], None] = lambda: None
        self.events: asyncio.Queue[Payload | None] = asyncio.Queue(EVENTS)
        self.hello: Payload = {}

    # -- one connection

    async def connect(self) -> None:
        """Connect unless connected. Raises GatewayUnreachable or RpcFailed."""
        async with self._connect_lock:
            if self._closed:
                raise ClientClosed
            if self._socket is not None:
                return
            try:
                socket = await connect(self._url, max_size=None, open_timeout=5, compression=None)
            except (OSError, TimeoutError, WebSocketException) as error:
                raise _unreachable(self._url, error) from error
            self._socket = socket
            self._reader = asyncio.create_task(self._read(socket), name="client")
            try:
                async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                    self.hello = await self._handshake()
            except BaseException as error:
                self._socket = None
                await socket.close()
                if isinstance(error, TimeoutError):
                    why = f"The server at {self._url} does not answer like a gateway."
                    raise GatewayUnreachable(why, fix="Check the address.") from None
                raise

    async def _handshake(self) -> Payload:
        return await self.call(
            "connect",
            minProtocol=3,
            maxProtocol=4,
            client={"id": "cli", "version": __version__, "platform": "python", "mode": "cli"},
            role="operator",
            auth={"token": self._token},
        )

    async def close(self) -> None:
        """Close for good: pending calls and follows end, and nothing reconnects."""
        self._closed = True
        for feed in self._feeds:
            feed.end()
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
        if self._reader is not None:
            self._reader.cancel()

    async def call(self, method: str, **params: Any) -> Payload:
        """Call a method and return its last answer. Raises RpcFailed or GatewayLost."""
        answers = [payload async for payload in self.answers(method, **params)]
        return answers[-1]

    async def answers(self, method: str, **params: Any) -> AsyncIterator[Payload]:
        """Call a method and yield each answer: `agent` has two. Raises RpcFailed or GatewayLost."""
        if self._socket is None:
            raise GatewayLost
        request_id = new_id()
        queue = self._answers[request_id] = asyncio.Queue()
        try:
            frame = {"type": "req", "id": request_id, "method": method, "params": params}
            try:
                await self._socket.send(orjson.dumps(frame).decode())
            except ConnectionClosed:
                raise GatewayLost from None
            while True:
                answer = await queue.get()
                if not answer.get("ok"):
                    raise failure(answer)
                yield answer["payload"]
                if method not in _TWO_ANSWERS or answer["payload"].get("status") != "accepted":
                    return
        finally:
            self._answers.pop(request_id, None)

    # -- across lost connections

    async def ask(self, message: str, session_key: str = "main", **params: Any) -> Reply:
        """Run one turn and return its reply. Raises TurnFailed when the turn failed.

        Retries share an idempotency key, so the turn runs once. `params` are further parameters of `agent`.
        """
        key = params.pop("idempotencyKey", None) or new_id()
        return _reply(
            await self._retrying(
                lambda: self.call(
                    "agent", message=message, sessionKey=session_key, idempotencyKey=key, **params
                )
            )
        )

    async def wait(self, run_id: str, timeout_s: float = 30.0) -> Payload:
        """Wait for the outcome of a run; after `timeout_s` the answer has the status `timeout`."""
        deadline = asyncio.get_running_loop().time() + timeout_s

        def attempt() -> Coroutine[Any, Any, Payload]:
            left_s = max(0.0, deadline - asyncio.get_running_loop().time())
            return self.call("agent.wait", runId=run_id, timeoutMs=int(left_s * 1000))

        return await self._retrying(attempt)

    def group(
        self, session_key: str = "main", *, timeout_s: float | None = None, concurrency: int = CONCURRENCY
    ) -> Group:
        """A group of sub-agents of a session, to be started and waited for; see `hobnob.client_groups`."""

        async def call(method: str, **params: Any) -> Payload:
            return await self._retrying(lambda: self.call(method, **params))

        return Group(call, session_key, timeout_s=timeout_s, concurrency=concurrency)

    async def follow(self, key: str, after: int | None = None) -> AsyncIterator[Payload]:
        """Yield the messages of a session as they are added, each once, in order.

        With `after`, first the messages behind that sequence number. Each is the payload of a
        `session.message` event; after a reset of the session `messageSeq` starts at 1 again.
        """
        transcript: str | None = None
        while not self._closed:
            feed = _Feed()
            self._feeds.add(feed)  # before the call, so that events right behind its answer are kept
            try:
                position = {"after": after, "sessionId": transcript}
                params = {name: value for name, value in position.items() if value is not None}
                subscribed = await self._retrying(
                    partial(self.call, "sessions.messages.subscribe", key=key, **params)
                )
                feed.key = subscribed["key"]
                after, transcript = subscribed["after"], subscribed["sessionId"]
                while (payload := await feed.next()) is not None:
                    if payload["sessionId"] != transcript:
                        transcript, after = payload["sessionId"], 0
                    if payload["messageSeq"] > after + 1:
                        break  # a gap: another follow of this client is ahead, so subscribe again
                    if payload["messageSeq"] == after + 1:
                        after = payload["messageSeq"]
                        yield payload
            finally:
                self._feeds.discard(feed)
                await self._unsubscribe(feed.key)

    async def _unsubscribe(self, key: str | None) -> None:
        """Unsubscribe from a session unless another `follow` of this client needs it."""
        if key is not None and self._socket is not None and not any(feed.key == key for feed in self._feeds):
            with suppress(HobnobError):
                await self.call("sessions.messages.unsubscribe", key=key)

    async def _retrying(self, act: Callable[[], Awaitable[T]]) -> T:
        """Run `act`; when its connection is lost, reconnect with back-off and run it again."""
        deadline = asyncio.get_running_loop().time() + self._patience_s
        pause = _MIN_BACKOFF_S
        while True:
            try:
                await self.connect()
                return await act()
            except (GatewayLost, GatewayUnreachable):
                if asyncio.get_running_loop().time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_BACKOFF_S)

    async def _read(self, socket: ClientConnection) -> None:
        """Dispatch frames until the connection closes, then fail pending calls and end the feeds."""
        try:
            async for text in socket:
                self._dispatch(orjson.loads(text))
        except ConnectionClosed:
            pass  # handled below
        except orjson.JSONDecodeError:  # not a gateway
            await socket.close()
        if self._socket is socket:
            self._socket = None
            self.on_lost()
        for queue in self._answers.values():
            queue.put_nowait(_LOST_ANSWER)
        for feed in self._feeds:
            feed.end()
        self._queue_event(None)

    def _dispatch(self, frame: Payload) -> None:
        if frame.get("type") == "res" and frame.get("id") in self._answers:
            self._answers[frame["id"]].put_nowait(frame)
        elif frame.get("type") == "event":
            if frame.get("event") == "session.message":
                for feed in self._feeds:
                    if feed.key in (None, frame["payload"]["sessionKey"]):
                        feed.put(frame["payload"])
            self._queue_event(frame)

    def _queue_event(self, frame: Payload | None) -> None:
        """Queue an event and drop the oldest when full: not every program reads `events`."""
        if self.events.full():
            self.events.get_nowait()
        self.events.put_nowait(frame)


class _Feed:
    """The queue of one `follow`. It ends when it is full or the connection is lost."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Payload | None] = asyncio.Queue()
        self._ended = False
        self.key: str | None = None  # the session's key, from the answer to the subscription

    def put(self, payload: Payload) -> None:
        if self._queue.qsize() >= MESSAGES:
            self.end()
        elif not self._ended:
            self._queue.put_nowait(payload)

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._queue.put_nowait(None)

    async def next(self) -> Payload | None:
        """The next message of the session; None at the end."""
        while True:
            payload = await self._queue.get()
            if payload is None or payload["sessionKey"] == self.key:
                return payload


_LOST_ANSWER = {"ok": False, "error": {"code": "UNAVAILABLE", "details": {"code": GatewayLost.code}}}


def _unreachable(url: str, error: Exception) -> GatewayUnreachable:
    """Why no gateway answers. Only a port of this machine that is closed means that none is running."""
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number is not None and number in errno.errorcode else str(error)
    refused = "Connection refused" in reason or f"[Errno {errno.ECONNREFUSED}]" in reason
    if refused and urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost"):
        return GatewayUnreachable(
            f"No gateway answers at {url}: connection refused.", fix="Start one with `hobnob serve`."
        )
    return GatewayUnreachable(
        f"No gateway answers at {url}: {reason.rstrip('.')}.",
        fix="Check the address, and that a gateway runs there.",
    )


@asynccontextmanager
async def open_client(url: str, token: str, *, patience_s: float = PATIENCE_S) -> AsyncIterator[Client]:
    """Connect to the gateway at `url`. Raises GatewayUnreachable or RpcFailed."""
    client = Client(url, token, patience_s=patience_s)
    try:
        await client.connect()
        yield client
    finally:
        await client.close()


def failure(answer: Payload) -> GatewayLost | RpcFailed:
    """The exception of an answer that is not ok."""
    error = answer.get("error") or {}
    details = error.get("details") or {}
    if details.get("code") == GatewayLost.code:
        return GatewayLost()
    message = str(error.get("message", "the gateway refused"))
    return RpcFailed(message, reason=details.get("code"), fix=details.get("fix"))


class SyncClient:
    """A `Client` for programs without an event loop; it runs one in a thread."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def call(self, method: str, **params: Any) -> Payload:
        return self.done(self._client.call(method, **params))

    def ask(self, message: str, session_key: str = "main", **params: Any) -> Reply:
        return self.done(self._client.ask(message, session_key, **params))

    def wait(self, run_id: str, timeout_s: float = 30.0) -> Payload:
        return self.done(self._client.wait(run_id, timeout_s))

    def follow(self, key: str, after: int | None = None) -> Iterator[Payload]:
        messages = self._client.follow(key, after)

        async def next_message() -> Payload:
            return await anext(messages)

        while True:
            yield self.done(next_message())

    def done(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the client's event loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _cancel_tasks() -> None:
    """Cancel all other tasks of the loop, so that no other thread waits for one forever."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def open_sync_client(url: str, token: str, *, patience_s: float = PATIENCE_S) -> Iterator[SyncClient]:
    """Connect to the gateway at `url`. Raises GatewayUnreachable or RpcFailed."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="hobnob client", daemon=True)
    thread.start()
    client = Client(url, token, patience_s=patience_s)
    sync = SyncClient(client, loop)
    try:
        sync.done(client.connect())
        yield sync
    finally:
        sync.done(client.close())
        sync.done(_cancel_tasks())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
