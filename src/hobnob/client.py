"""A client of the gateway: call, listen, wait. The command line and programs use it.

    async with open_client("ws://127.0.0.1:4626", token) as client:
        answer = await client.ask("what is 6 * 7?")
        async for message in client.follow("main", after=0): ...

A connection that is lost is made again. What can be repeated without harm is: waiting, following from the
last message seen, and asking, which has a key the gateway knows it by.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from hobnob import __version__
from hobnob.errors import ClientClosed, GatewayLost, GatewayUnreachable, HobnobError, RpcFailed
from hobnob.types import new_id

Payload = dict[str, Any]
T = TypeVar("T")
EVENTS = 10_000  # kept for a program that does not look at them
MESSAGES = 1_000  # kept for one that follows a session
PATIENCE_S = 60.0  # for a gateway that went away to come back
_SIGN_IN_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_ANSWERED_TWICE = ("agent",)


class Client:
    """Answers find their requests by id; events go to `events`, None when the connection is over."""

    def __init__(self, url: str, token: str, *, patience_s: float = PATIENCE_S) -> None:
        self._url = url
        self._token = token
        self._patience_s = patience_s
        self._socket: ClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._answers: dict[str, asyncio.Queue[Payload]] = {}
        self._feeds: set[_Feed] = set()
        self.on_lost: Callable[[], None] = lambda: None
        self.events: asyncio.Queue[Payload | None] = asyncio.Queue(EVENTS)
        self.hello: Payload = {}

    # -- once

    async def connect(self) -> None:
        """Connect, unless that is done. Raises GatewayUnreachable or RpcFailed."""
        async with self._connecting:
            if self._closed:
                raise ClientClosed
            if self._socket is not None:
                return
            try:
                socket = await connect(self._url, max_size=None, open_timeout=5, compression=None)
            except (OSError, TimeoutError, WebSocketException) as error:
                raise GatewayUnreachable(
                    f"No gateway answers at {self._url}: {error}.", fix="Start one with `hobnob serve`."
                ) from error
            self._socket = socket
            self._reading = asyncio.create_task(self._read(socket), name="client")
            try:
                async with asyncio.timeout(_SIGN_IN_S):
                    self.hello = await self._sign_in()
            except BaseException as error:
                self._socket = None
                await socket.close()
                if isinstance(error, TimeoutError):
                    why = f"What listens at {self._url} does not answer like a gateway."
                    raise GatewayUnreachable(why, fix="Is the address right?") from None
                raise

    async def _sign_in(self) -> Payload:
        return await self.call(
            "connect",
            minProtocol=3,
            maxProtocol=4,
            client={"id": "cli", "version": __version__, "platform": "python", "mode": "cli"},
            role="operator",
            auth={"token": self._token},
        )

    async def close(self) -> None:
        """Be done with it: whoever still waits or follows is told, and nothing connects again."""
        self._closed = True
        for feed in self._feeds:
            feed.end()
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
        if self._reading is not None:
            self._reading.cancel()

    async def call(self, method: str, **params: Any) -> Payload:
        """The last answer of a method. Raises RpcFailed, or GatewayLost when the connection breaks."""
        answers = [payload async for payload in self.answers(method, **params)]
        return answers[-1]

    async def answers(self, method: str, **params: Any) -> AsyncIterator[Payload]:
        """All answers of a method, as they come: `agent` has two."""
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
                if method not in _ANSWERED_TWICE or answer["payload"].get("status") != "accepted":
                    return
        finally:
            self._answers.pop(request_id, None)

    # -- until it is done, over as many connections as it takes

    async def ask(self, message: str, session_key: str = "main", **params: Any) -> Payload:
        """Have a session's agent answer a message. It is asked once, however often the connection breaks."""
        key = params.pop("idempotencyKey", None) or new_id()
        return await self._lasting(
            lambda: self.call("agent", message=message, sessionKey=session_key, idempotencyKey=key, **params)
        )

    async def wait(self, run_id: str, timeout_s: float = 30.0) -> Payload:
        """How a run ended, or that it has not. The same answer whenever it is asked for."""
        deadline = asyncio.get_running_loop().time() + timeout_s

        def again() -> Coroutine[Any, Any, Payload]:
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            return self.call("agent.wait", runId=run_id, timeoutMs=int(left * 1000))

        return await self._lasting(again)

    async def follow(self, key: str, after: int | None = None) -> AsyncIterator[Payload]:
        """The messages of a session as they are added, each once, in order; with `after`, those since too.

        Each is an event `session.message` with its `messageSeq`. After a reset numbers begin at 1 again.
        """
        transcript: str | None = None
        while not self._closed:
            feed = _Feed()
            self._feeds.add(feed)  # before asking: what follows the answer at once is not missed
            try:
                place = {"after": after, "sessionId": transcript}
                given = {name: value for name, value in place.items() if value is not None}
                asked = await self._lasting(
                    partial(self.call, "sessions.messages.subscribe", key=key, **given)
                )
                feed.key = asked["key"]
                after, transcript = asked["after"], asked["sessionId"]
                while (payload := await feed.next()) is not None:
                    if payload["sessionId"] != transcript:
                        transcript, after = payload["sessionId"], 0
                    if payload["messageSeq"] > after + 1:
                        break  # somebody else's subscription was quicker than ours: ask from here again
                    if payload["messageSeq"] == after + 1:
                        after = payload["messageSeq"]
                        yield payload
            finally:
                self._feeds.discard(feed)
                await self._unsubscribe(feed.key)

    async def _unsubscribe(self, key: str | None) -> None:
        """Nobody here follows it any more: the gateway need not tell us."""
        if key is not None and self._socket is not None and not any(feed.key == key for feed in self._feeds):
            with suppress(HobnobError):
                await self.call("sessions.messages.unsubscribe", key=key)

    async def _lasting(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do something, and do it again on a new connection when the one it was on breaks."""
        deadline = asyncio.get_running_loop().time() + self._patience_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                await self.connect()
                return await act()
            except (GatewayLost, GatewayUnreachable):
                if asyncio.get_running_loop().time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _read(self, socket: ClientConnection) -> None:
        """Read frames until the connection closes; whoever still waits hears of it."""
        try:
            async for text in socket:
                self._take(orjson.loads(text))
        except ConnectionClosed:
            pass  # told below, to everybody
        except orjson.JSONDecodeError:  # that is no gateway
            await socket.close()
        if self._socket is socket:
            self._socket = None
            self.on_lost()
        for queue in self._answers.values():
            queue.put_nowait(_GONE)
        for feed in self._feeds:
            feed.end()
        self._note(None)

    def _take(self, frame: Payload) -> None:
        if frame.get("type") == "res" and frame.get("id") in self._answers:
            self._answers[frame["id"]].put_nowait(frame)
        elif frame.get("type") == "event":
            if frame.get("event") == "session.message":
                for feed in self._feeds:
                    if feed.key in (None, frame["payload"]["sessionKey"]):
                        feed.put(frame["payload"])
            self._note(frame)

    def _note(self, frame: Payload | None) -> None:
        """Keep an event. The oldest makes room: a program that does not look at them must not grow."""
        if self.events.full():
            self.events.get_nowait()
        self.events.put_nowait(frame)


class _Feed:
    """Messages on their way to whoever follows a session; it ends when there is no room or no connection."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Payload | None] = asyncio.Queue()
        self._over = False
        self.key: str | None = None  # of the session, once that is known

    def put(self, payload: Payload) -> None:
        if self._waiting.qsize() >= MESSAGES:
            self.end()
        elif not self._over:
            self._waiting.put_nowait(payload)

    def end(self) -> None:
        if not self._over:
            self._over = True
            self._waiting.put_nowait(None)

    async def next(self) -> Payload | None:
        """The next message of the session; None at the end."""
        while True:
            payload = await self._waiting.get()
            if payload is None or payload["sessionKey"] == self.key:
                return payload


_GONE = {"ok": False, "error": {"code": "UNAVAILABLE", "details": {"code": GatewayLost.code}}}


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
    """What an answer that is not ok says."""
    error = answer.get("error") or {}
    details = error.get("details") or {}
    if details.get("code") == GatewayLost.code:
        return GatewayLost()
    message = str(error.get("message", "the gateway refused"))
    return RpcFailed(message, reason=details.get("code"), fix=details.get("fix"))


class SyncClient:
    """The same for programs without an event loop. It has one of its own, in a thread."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def call(self, method: str, **params: Any) -> Payload:
        return self.done(self._client.call(method, **params))

    def ask(self, message: str, session_key: str = "main", **params: Any) -> Payload:
        return self.done(self._client.ask(message, session_key, **params))

    def wait(self, run_id: str, timeout_s: float = 30.0) -> Payload:
        return self.done(self._client.wait(run_id, timeout_s))

    def follow(self, key: str, after: int | None = None) -> Iterator[Payload]:
        messages = self._client.follow(key, after)

        async def following() -> Payload:
            return await anext(messages)

        while True:
            yield self.done(following())

    def done(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of something the client does."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _all_over() -> None:
    """Nobody in another thread waits for ever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def open_sync_client(url: str, token: str, *, patience_s: float = PATIENCE_S) -> Iterator[SyncClient]:
    """Connect to the gateway at `url`, from a program without an event loop."""
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
        sync.done(_all_over())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
