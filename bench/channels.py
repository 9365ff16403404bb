"""Chat channels: what a message from a chat costs, beside a plain turn of the same gateway.

The platforms are the fakes of the tests, and the model is in the process of the benchmark, so that it sees
when a request arrives.
"""

from __future__ import annotations

import asyncio
import importlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench import Figure
from bench._gateways import TOKEN, cpu_ns, cpu_s, gateway, rss_mb
from hobnob.client import Client, open_client
from hobnob.types import new_id

PLATFORMS = ("telegram", "discord", "slack", "matrix", "irc")
LATENCIES = 60
CHATS, MESSAGES, ROUNDS = 200, 1_000, 3
LIMITED_S = 60
IDLE_S = 20.0
_RULES = {"dmPolicy": "open", "allowFrom": ["*"], "streaming": {"mode": "off"}}


def run() -> list[Figure]:
    figures = [*asyncio.run(_traffic()), *asyncio.run(_idle())]
    return [*figures, _unused()]


# Latency, throughput and limits, on Slack.


async def _traffic() -> list[Figure]:
    slack = _platform("slack")
    await slack.start()
    try:
        async with _Model().serving() as model:
            with tempfile.TemporaryDirectory() as folder:
                settings = _settings(model.url, {"slack": slack.settings() | _RULES})
                with gateway(Path(folder), settings) as (url, pid):
                    async with open_client(url, TOKEN) as client:
                        await slack.fake.until(lambda: slack.fake.opened)
                        return [
                            await _latency(slack, model, client),
                            *await _throughput(slack, client, pid),
                            await _limited(slack),
                        ]
    finally:
        await slack.stop()


async def _latency(slack: Any, model: _Model, client: Client) -> Figure:
    """From the event to the first request of the model, beside the same for a call of the gateway."""
    chat, plain = [], []
    for number in range(LATENCIES):
        text = f"plain {number}"
        started = time.perf_counter()
        answer = asyncio.create_task(_turn(client, "hook:latency", text))
        plain.append(await model.arrival(text) - started)
        await answer
        text = f"chat {number}"
        started = time.perf_counter()
        await slack.say(text, sender="lee")
        chat.append(await model.arrival(text) - started)
        await slack.posts(number + 1, chat="lee")
    above = (statistics.median(chat[10:]) - statistics.median(plain[10:])) * 1000
    return Figure(
        "chat message to the model's request",
        f"{statistics.median(chat[10:]) * 1000:.1f} ms",
        f"{statistics.median(plain[10:]) * 1000:.1f} ms, a plain turn",
        statistics.median(chat[10:]) / statistics.median(plain[10:]),
        "< 15 ms above",
        above < 15,
    )


async def _throughput(slack: Any, client: Client, pid: int) -> list[Figure]:
    """Messages of many chats, all at once, beside as many plain turns: the medians of some rounds of both."""
    rounds = [await _round(slack, client, pid, number) for number in range(ROUNDS)]
    chat_s, plain_s, chat_cpu, plain_cpu = (
        statistics.median(values) for values in zip(*(times for times, _ in rounds), strict=True)
    )
    wrong = sum(count for _, count in rounds)
    return [
        Figure(
            f"{MESSAGES:,} messages over {CHATS} chats",
            f"{MESSAGES / chat_s:,.0f}/s",
            f"{MESSAGES / plain_s:,.0f}/s, plain turns",
            plain_s / chat_s,
            "> 0.5 of plain turns",
            plain_s / chat_s > 0.5,
        ),
        Figure(
            "CPU time of the gateway per message and its answer",
            f"{chat_cpu / MESSAGES * 1000:.1f} ms",
            f"{plain_cpu / MESSAGES * 1000:.1f} ms, a plain turn",
            chat_cpu / plain_cpu,
            "< 2 plain turns",
            chat_cpu / plain_cpu < 2,
        ),
        Figure("chats with an answer lost, doubled or out of order", str(wrong), "0", wrong, "0", wrong == 0),
    ]


async def _round(slack: Any, client: Client, pid: int, number: int) -> tuple[tuple[float, ...], int]:
    """Wall and CPU times of both, and how many chats did not get exactly their answers."""
    each = MESSAGES // CHATS
    people = [f"p{person}" for person in range(CHATS)]
    words = [f"message {number}.{count}" for count in range(each)]
    goal = slack.fake.posted + MESSAGES
    started, used = time.perf_counter(), cpu_s(pid)
    for text in words:
        for person in people:
            await slack.say(text, sender=person)
    await slack.fake.until(lambda: slack.fake.posted >= goal)  # one waiter: the fake wakes each at any change
    chat_s, chat_cpu = time.perf_counter() - started, cpu_s(pid) - used
    answers = await asyncio.gather(*(slack.posts(each * (number + 1), chat=person) for person in people))
    await slack.fake.until(lambda: not slack.fake.unanswered)

    async def plain_turns(person: str) -> None:
        for text in words:
            await _turn(client, f"hook:{person}", text)

    started, used = time.perf_counter(), cpu_s(pid)
    await asyncio.gather(*map(plain_turns, people))
    plain_s, plain_cpu = time.perf_counter() - started, cpu_s(pid) - used
    expected = [f"You said: {text}" for text in words]
    wrong = sum([post.text for post in posts][each * number :] != expected for posts in answers)
    return (chat_s, plain_s, chat_cpu, plain_cpu), wrong


async def _limited(slack: Any) -> Figure:
    """How much longer other chats wait for an answer while the platform limits one of them."""

    async def answered(number: int) -> float:
        started = time.perf_counter()
        await slack.say("hello", sender="quick")
        await slack.posts(number, chat="quick")
        return time.perf_counter() - started

    free = [await answered(number + 1) for number in range(LATENCIES)]
    slack.fake.limited[slack.fake.dm_of(slack.user_id("slow"))] = LIMITED_S
    for _ in range(5):
        await slack.say("hello", sender="slow")
    await slack.fake.until(lambda: slack.fake.limited_calls)
    held = [await answered(LATENCIES + number + 1) for number in range(LATENCIES)]
    slack.fake.limited.clear()
    above = (statistics.median(held) - statistics.median(free)) * 1000
    return Figure(
        "answer while another chat is limited",
        f"{statistics.median(held) * 1000:.1f} ms",
        f"{statistics.median(free) * 1000:.1f} ms, nothing is limited",
        statistics.median(held) / statistics.median(free),
        "< 50 ms above",
        above < 50,
    )


async def _turn(client: Client, session: str, text: str) -> None:
    answer = await client.call("agent", message=text, sessionKey=session, idempotencyKey=new_id())
    assert answer["status"] == "ok", answer


# Idle cost, with every platform that can be started here.


async def _idle() -> list[Figure]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        platforms = []
        for name in PLATFORMS:
            if (platform := await _started(name, folder)) is not None:
                stack.push_async_callback(platform.stop)
                platforms.append(platform)
        blocks = {platform.name: platform.settings() | _RULES for platform in platforms}
        without_mb, without_cpu = await _idle_cost({}, 0)
        with_mb, with_cpu = await _idle_cost(blocks, len(platforms))
    names = ", ".join(platform.name for platform in platforms)
    return [
        Figure(
            f"idle memory of {len(platforms)} channels ({names})",
            f"{with_mb - without_mb:.0f} MB above",
            f"{without_mb:.0f} MB, none",
            with_mb / without_mb,
            "< 25 MB above",
            with_mb - without_mb < 25,
        ),
        Figure(
            "idle CPU of the same",
            f"{with_cpu:.2%} of a core",
            f"{without_cpu:.2%}, none",
            with_cpu / max(without_cpu, 1e-6),
            "< 1 % above",
            with_cpu - without_cpu < 0.01,
        ),
    ]


async def _idle_cost(blocks: dict[str, Any], count: int) -> tuple[float, float]:
    """Memory in MB and the part of a core that a gateway uses while nobody writes."""
    with tempfile.TemporaryDirectory() as folder:
        with gateway(Path(folder), {"channels": blocks}) as (url, pid):
            async with open_client(url, TOKEN) as client:
                while await _connected(client) < count:  # noqa: ASYNC110 - nothing to wait on
                    await asyncio.sleep(0.1)
            await asyncio.sleep(3)  # what the start left behind
            before = cpu_ns(pid)
            await asyncio.sleep(IDLE_S)
            return rss_mb(pid), (cpu_ns(pid) - before) / 1e9 / IDLE_S


async def _connected(client: Client) -> int:
    status = await client.call("channels.status")
    accounts = [a for found in status["channelAccounts"].values() for a in found]
    return sum(bool(account.get("connected")) for account in accounts)


async def _started(name: str, folder: Path) -> Any | None:
    """A platform of the tests, started; None if its server is not installed."""
    try:
        platform = _platform(name, folder)
        await platform.start()
    except (Exception, pytest.skip.Exception) as missing:  # the figure names the platforms it is about
        print(f"  without {name}: {missing}", file=sys.stderr)
        return None
    return platform


def _platform(name: str, folder: Path | None = None) -> Any:
    module = importlib.import_module(f"tests.channels.{name}_platform")
    kind = getattr(module, f"{name.title()}Platform")
    return kind("ngircd", folder) if name == "irc" else kind()


# Imports.


def _unused() -> Figure:
    """What is imported of channels by a gateway that has none."""
    names = tuple(f"hobnob.channels.{name}" for name in PLATFORMS)
    program = f"""
import asyncio, sys, tempfile
from pathlib import Path
from hobnob.testing import rehearse, say

async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with rehearse(Path(folder)) as gateway:
            await say(gateway, "hello")

asyncio.run(main())
print(sum(module.startswith({names!r}) for module in sys.modules))
"""
    found = subprocess.run(  # noqa: S603 - a fixed command
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    count = int(found.stdout)
    return Figure("modules of unused channels", str(count), "0", count, "0", count == 0)


# A model that repeats what it was told, and notes when it was told.


class _Model:
    def __init__(self) -> None:
        self.url = ""
        self._arrivals: dict[str, asyncio.Future[float]] = {}

    def _arrived(self, text: str) -> asyncio.Future[float]:
        return self._arrivals.setdefault(text, asyncio.get_running_loop().create_future())

    async def arrival(self, text: str) -> float:
        """Wait for the request of a message. Returns when it came."""
        return await self._arrived(text)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[_Model]:
        async with await asyncio.start_server(self._answer, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                return
            came = time.perf_counter()
            length = next(
                int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
            )
            text = _last_text(orjson.loads(await reader.readexactly(length)))
            if not (arrived := self._arrived(text)).done():
                arrived.set_result(came)
            choice = {"index": 0, "delta": {"content": f"You said: {text}"}, "finish_reason": "stop"}
            event = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            data = b"data: " + orjson.dumps(event | {"choices": [choice]}) + b"\n\ndata: [DONE]\n\n"
            start = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
            writer.write(start % len(data) + data)


def _last_text(request: dict[str, Any]) -> str:
    """What a person said last, without what the gateway adds to it."""
    content = [m["content"] for m in request["messages"] if m["role"] == "user"][-1]
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return text.strip().splitlines()[-1]


def _settings(model: str, channels: dict[str, Any]) -> dict[str, Any]:
    provider = {"baseUrl": model, "models": [{"id": "m"}], "maxConcurrent": 2 * CHATS}
    return {
        "agents": {"defaults": {"model": "own/m", "maxConcurrent": 2 * CHATS}},
        "models": {"providers": {"own": provider}},
        "session": {"dmScope": "per-channel-peer"},
        "channels": channels,
    }
