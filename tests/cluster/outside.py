"""What is outside of the gateways: a model provider, a chat platform and a receiver of webhooks.

The model does what the message says: `m-7 [{"tool": …, "arguments": {…}}, …]` makes it call these tools, one
after the other, and then, as for any other text, it answers `answer m-7`. In the steps of an exchange that
follow the first answer it stays silent, so that an exchange ends by itself.
"""

import asyncio
import contextlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web
from tests.waiting import LIMIT_S

from hobnob import briefings

_MARKER = re.compile(r"\bm-[\w-]+")
_SILENT = ("REPLY_SKIP", "ANNOUNCE_SKIP")
_SUMMARISE = briefings.summarise("")[:60]
Range = tuple[float, float]


class Outside:
    """`delay_s` is the time of a model's answer, `post_s` that of a receipt: between these two, at random."""

    def __init__(self) -> None:
        self.url = ""
        self.delay_s: Range = (0.0, 0.0)
        self.post_s: Range = (0.0, 0.0)
        self.chunks = 3
        self.asked: Counter[str] = Counter()  # model calls by marker
        self.posts: list[dict[str, str]] = []  # messages of the channel: key, to, text
        self.webhooks: list[tuple[str, dict[str, Any]]] = []  # idempotency key and body
        self.said: list[dict[str, str]] = []  # what people wrote in chats: from, text
        self.on_the_way: list[str] = []  # texts of messages that were sent and have not arrived
        self._held: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._holding: set[str] = set()
        self._slow: set[str] = set()
        self._news = asyncio.Condition()

    def hold(self, marker: str) -> None:
        """Until `release`, answers to this marker stop after a first piece, receipts of this text wait."""
        self._holding.add(marker)

    def slow_down(self, text: str) -> None:
        """Until `release`, a message with this text does not arrive."""
        self._slow.add(text)

    def release(self, marker: str) -> None:
        self._holding.discard(marker)
        self._slow.discard(marker)
        self._held[marker].set()

    async def asked_for(self, marker: str, times: int = 1) -> None:
        """Wait until the model was called so many times for a marker."""
        async with asyncio.timeout(LIMIT_S), self._news:
            await self._news.wait_for(lambda: self.asked[marker] >= times)

    # -- the model

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        marker, call, text = _decide(body["messages"])
        async with self._news:
            self.asked[marker] += 1
            self._news.notify_all()
        pause_s = random.uniform(*self.delay_s) / (self.chunks + 1)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        with contextlib.suppress(ConnectionError):  # the gateway is gone
            await response.prepare(request)
            await self._stream(response, marker, call, text, pause_s)
        return response

    async def _stream(
        self,
        response: web.StreamResponse,
        marker: str,
        call: dict[str, Any] | None,
        text: str,
        pause_s: float,
    ) -> None:
        await asyncio.sleep(pause_s)
        if call is not None:
            await response.write(_sse({"tool_calls": [call]}))
            await response.write(_sse({}, "tool_calls"))
        else:
            for number, piece in enumerate(_pieces(text, self.chunks)):
                await response.write(_sse({"content": piece}))
                if number == 0 and marker in self._holding:
                    await self._held[marker].wait()
                await asyncio.sleep(pause_s)
            await response.write(_sse({}, "stop"))
        await response.write(b"data: [DONE]\n\n")

    # -- the chat platform

    async def say(self, sender: str, text: str) -> None:
        """A person writes in a chat. The platform keeps it until it is asked for it."""
        async with self._news:
            self.said.append({"from": sender, "text": text})
            self._news.notify_all()

    async def inbound(self, request: web.Request) -> web.Response:
        """The messages after a position; waits a second for the first one."""
        after = int(request.query["after"])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1), self._news:
                await self._news.wait_for(lambda: len(self.said) > after)
        return web.json_response(self.said[after:])

    async def post(self, request: web.Request) -> web.Response:
        """A message counts as received when it has arrived, whether or not the receipt does."""
        message = orjson.loads(await request.read())
        text = message["text"]
        if text in self._slow:
            self.on_the_way.append(text)
            try:
                await self._held[text].wait()
            finally:  # also when the sender gives up
                self.on_the_way.remove(text)
        self.posts.append(message)
        number = len(self.posts)
        if text in self._holding:
            await self._held[text].wait()
        await asyncio.sleep(random.uniform(*self.post_s))
        return web.Response(text=str(number))

    # -- the receiver of webhooks

    async def webhook(self, request: web.Request) -> web.Response:
        self.webhooks.append((request.headers["Idempotency-Key"], orjson.loads(await request.read())))
        await asyncio.sleep(random.uniform(*self.post_s))
        return web.Response()


def _decide(messages: list[dict[str, Any]]) -> tuple[str, dict[str, Any] | None, str]:
    """The marker of the last input, and what to do: a tool call, or a text."""
    last_user = max(i for i, message in enumerate(messages) if message["role"] == "user")
    said = str(messages[last_user]["content"])
    found = _MARKER.search(said)
    marker = found[0] if found else "m-none"
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    if system.startswith(_SUMMARISE):
        return "m-none", None, "Summary of what was said: nothing but lorem ipsum so far."
    for word in _SILENT:
        if word in system:
            return marker, None, word
    wishes = orjson.loads(said[begin:]) if found and (begin := said.find("[{", found.end())) >= 0 else []
    done = sum(1 for message in messages[last_user:] if message["role"] == "assistant")
    if done < len(wishes):
        wish = wishes[done]
        function = {"name": wish["tool"], "arguments": orjson.dumps(wish["arguments"]).decode()}
        call = {"index": 0, "id": f"call-{marker}-{done}", "type": "function", "function": function}
        return marker, call, ""
    return marker, None, f"answer {marker}"


def _pieces(text: str, count: int) -> list[str]:
    size = -(-len(text) // count)
    return [text[at : at + size] for at in range(0, len(text), size)]


def _sse(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


@asynccontextmanager
async def open_outside() -> AsyncIterator[Outside]:
    outside = Outside()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", outside.complete)
    app.router.add_post("/posts", outside.post)
    app.router.add_get("/posts", outside.inbound)
    app.router.add_post("/webhook", outside.webhook)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    outside.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield outside
    finally:
        await runner.cleanup()
