"""A fake model provider on a loopback socket, which answers in the real wire formats."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from aiohttp import web

from hobnob.config import Settings
from hobnob.models import Event, Failed, Finished, Model, Request
from hobnob.models.catalog import Catalog, open_models
from hobnob.models.http import Timeouts

KEY = "sk-very-secret-0123456789"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ReceivedRequest:
    """A request as the provider got it. `gone` is set when the client leaves before the answer is over."""

    path: str
    query: str
    headers: dict[str, str]
    body: Any
    port: int
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class FakeProvider:
    def __init__(self) -> None:
        self.url = ""
        self.seen: list[ReceivedRequest] = []
        self.arrived = asyncio.Condition()
        self._replies: deque[Handler] = deque()

    @property
    def body(self) -> Any:
        return self.seen[-1].body

    def streams(self, events: list[Any], *, then: str = "end", end: asyncio.Event | None = None) -> None:
        """Answer with events: dicts are sent as data, bytes as they are. `then` is end, cut or hang."""

        async def reply(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for event in events:
                await response.write(event if isinstance(event, bytes) else sse(event))
            if end:
                await end.wait()
            if then == "hang":
                await asyncio.Event().wait()
            if then == "cut":
                assert request.transport
                request.transport.abort()
            return response

        self._replies.append(reply)

    def answers(self, status: int, body: Any, *, kind: str = "application/json", **headers: str) -> None:
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}

        async def reply(request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, body=raw, headers={"Content-Type": kind, **named})

        self._replies.append(reply)

    def floods(self, status: int) -> None:
        """Answer with a body that does not end."""

        async def reply(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(status=status, headers={"Content-Type": "text/plain"})
            await response.prepare(request)
            while True:
                await response.write(b"no " * 1000)

        self._replies.append(reply)

    def is_silent(self) -> None:
        async def reply(request: web.Request) -> web.StreamResponse:
            await asyncio.Event().wait()
            raise AssertionError

        self._replies.append(reply)

    async def has_seen(self, count: int) -> None:
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.seen) >= count)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert request.transport
        port = request.transport.get_extra_info("peername")[1]
        body = orjson.loads(await request.read())
        seen = ReceivedRequest(request.path, request.query_string, dict(request.headers), body, port)
        async with self.arrived:
            self.seen.append(seen)
            self.arrived.notify_all()
        try:
            return await self._replies.popleft()(request)
        except (asyncio.CancelledError, ConnectionError):
            seen.gone.set()
            raise


def sse(event: dict[str, Any]) -> bytes:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return name.encode() + b"data: " + orjson.dumps(event) + b"\n\n"


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    fake = FakeProvider()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{tail:.*}", fake.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()


OpenCatalog = Callable[..., Awaitable[Catalog]]


@pytest.fixture
async def catalog() -> AsyncIterator[OpenCatalog]:
    """Open models on settings: `await catalog({"openai": {...}}, env)`."""
    async with AsyncExitStack() as stack:

        async def opened(
            providers: dict[str, Any], env: dict[str, str] | None = None, **more: Any
        ) -> Catalog:
            settings = Settings.model_validate({"models": {"providers": providers}})
            return await stack.enter_async_context(open_models(settings, env or {}, **more))

        yield opened


@dataclass
class ModelAnswer:
    """All events of one stream."""

    events: list[Event]

    @property
    def last(self) -> Event:
        return self.events[-1]

    @property
    def message(self) -> dict[str, Any]:
        assert isinstance(self.last, Finished), self.last
        return self.last.message

    @property
    def failure(self) -> Failed:
        assert isinstance(self.last, Failed), self.last
        return self.last


class Client:
    """A model at the fake provider, under the name and in the format of a real one."""

    def __init__(self, catalog: OpenCatalog, url: str, name: str, api: str, model: str) -> None:
        self._catalog = catalog
        self._url = url
        self.name, self.api, self.id = name, api, model

    async def model(self, *, timeouts: Timeouts | None = None, **settings: Any) -> Model:
        given = {"baseUrl": self._url, "apiKey": KEY, "api": self.api, **settings}
        return (await self._catalog({self.name: given}, timeouts=timeouts)).model(f"{self.name}/{self.id}")

    def request(self, *messages: dict[str, Any] | str, system: str = "", **more: Any) -> Request:
        given = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages or ("Hi",)]
        return Request(model=self.id, system=system, messages=given, **more)

    async def ask(
        self,
        *messages: dict[str, Any] | str,
        timeouts: Timeouts | None = None,
        settings: dict[str, Any] | None = None,
        **more: Any,
    ) -> ModelAnswer:
        model = await self.model(timeouts=timeouts, **settings or {})
        async with aclosing(model.stream(self.request(*messages, **more))) as stream:  # type: ignore[type-var]
            return ModelAnswer([event async for event in stream])


@pytest.fixture
def client(catalog: OpenCatalog, provider: FakeProvider) -> Callable[[str, str, str], Client]:
    return lambda name, api, model: Client(catalog, provider.url, name, api, model)


@pytest.fixture
def chat(client: Callable[[str, str, str], Client]) -> Client:
    return client("openai", "openai-completions", "gpt-4o")


@pytest.fixture
def responses(client: Callable[[str, str, str], Client]) -> Client:
    return client("openai", "openai-responses", "gpt-5")


@pytest.fixture
def claude(client: Callable[[str, str, str], Client]) -> Client:
    return client("anthropic", "anthropic-messages", "claude-sonnet-4-5")


@pytest.fixture
def gemini(client: Callable[[str, str, str], Client]) -> Client:
    return client("google", "google-generative-ai", "gemini-2.5-flash")
