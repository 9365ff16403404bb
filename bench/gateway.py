"""The cost of clients: one call, fan-out of a message, idle connections, HTTP pages during turns."""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.pool import Pool
from pathlib import Path

import uvloop
from websockets.asyncio.client import ClientConnection, connect

from bench import Figure
from bench._gateways import TOKEN, bare_process, bare_server, cpu_s, gateway, rss_mb
from bench._model_server import model_server
from hobnob.client import Client, open_client
from hobnob.types import new_id

CALLS = 20_000
IN_FLIGHT = 32
SUBSCRIBERS = 1_000
APPENDS = 15
IDLE = 5_000
PAGES_S = 8.0
PAGE_RATE = 205  # pages requested per second; the budget is 200
CONNECT = {
    "minProtocol": 4,
    "maxProtocol": 4,
    "auth": {"token": TOKEN},
    "client": {"id": "test", "mode": "test"},
}


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, gateway(Path(folder), {}) as (url, pid):
        with bare_server() as (bare_url, bare_pid):
            bare = uvloop.run(_call_cost(bare_url, bare_pid, hello=False))
            ours = uvloop.run(_call_cost(url, pid, hello=True))
        last_s, answer_s = uvloop.run(_fan_out(url))
        with bare_process("-m", "bench._bare_server", folder, "") as (bare_url, _):
            bare_last_s = uvloop.run(_bare_fan_out(bare_url))
        before = rss_mb(pid)
        with_idle = uvloop.run(_idle(url, pid))
    rate, rate_during_turns, slowdown, slowdown_instant = _pages()
    return [
        Figure(
            "one call, CPU of the gateway",
            f"{ours * 1e6:.0f} µs",
            f"{bare * 1e6:.0f} µs, a bare echo",
            ours / bare,
            "≤ 2.00",
            ours <= 2 * bare,
        ),
        Figure(
            f"one message to {SUBSCRIBERS:,} subscribers, to the last",
            f"{last_s * 1000:.0f} ms",
            f"{bare_last_s * 1000:.0f} ms, bare publish",
            last_s / bare_last_s,
            "≤ 32 ms",
            last_s <= 0.032,
        ),
        Figure(
            "the same, to the answer for its sender",
            f"{answer_s * 1000:.1f} ms",
            f"{bare_last_s * 1000:.0f} ms, bare publish",
            answer_s / bare_last_s,
            "≤ 5 ms",
            answer_s <= 0.005,
        ),
        Figure(
            f"{IDLE:,} idle clients",
            f"{with_idle:.0f} MB",
            f"{before:.0f} MB before",
            with_idle / before,
            "< 250 MB",
            with_idle < 250,
        ),
        Figure(
            "history pages over HTTP, from one core",
            f"{rate:,.0f}/s",
            "(none)",
            rate / 200,
            "≥ 200/s",
            rate >= 200,
        ),
        Figure(
            f"turns of a 50 ms model, during {rate_during_turns:.0f} pages/s",
            f"{slowdown:.2f} of their time",
            "1.00 without pages",
            slowdown,
            "≤ 1.10",
            slowdown <= 1.10 and rate_during_turns >= 200,
        ),
        Figure(
            "the same, of a model without delay",
            f"{slowdown_instant:.2f} of their time",
            "1.00 without pages",
            slowdown_instant,
            "(none)",
            True,
        ),
    ]


async def _call_cost(url: str, pid: int, *, hello: bool) -> float:
    """CPU of the server per call, with several calls in flight."""
    async with connect(url, compression=None) as socket:
        if hello:
            await socket.recv()
            await _call(socket, "connect", CONNECT)
        frame = json.dumps({"type": "req", "id": "1", "method": "agent.identity.get", "params": {}})

        async def make_calls(count: int) -> None:
            for _ in range(IN_FLIGHT):
                await socket.send(frame)
            for i in range(count):
                await socket.recv()
                if i < count - IN_FLIGHT:
                    await socket.send(frame)

        await make_calls(2_000)
        start = cpu_s(pid)
        await make_calls(CALLS)
        return (cpu_s(pid) - start) / CALLS


async def _call(socket: ClientConnection, method: str, params: dict[str, object]) -> None:
    await socket.send(json.dumps({"type": "req", "id": "1", "method": method, "params": params}))
    while json.loads(await socket.recv()).get("id") != "1":
        pass


async def _open(url: str) -> ClientConnection:
    socket = await connect(url, compression=None, ping_interval=None)
    await socket.recv()
    await _call(socket, "connect", CONNECT)
    return socket


async def _open_many(
    count: int, open_one: Callable[[], Awaitable[ClientConnection]]
) -> list[ClientConnection]:
    sockets: list[ClientConnection] = []
    while len(sockets) < count:
        sockets += await asyncio.gather(*(open_one() for _ in range(min(100, count - len(sockets)))))
    return sockets


async def _fan_out(url: str) -> tuple[float, float]:
    """Median time from adding a message until the last subscriber has it, and until its answer."""
    async with open_client(url, TOKEN) as client:
        await client.call("sessions.create", key="agent:main:dashboard:fan-out")

        async def subscriber() -> ClientConnection:
            socket = await _open(url)
            await _call(socket, "sessions.messages.subscribe", {"key": "agent:main:dashboard:fan-out"})
            return socket

        sockets = await _open_many(SUBSCRIBERS, subscriber)
        session = "agent:main:dashboard:fan-out"
        return await _published(
            sockets, lambda: client.call("chat.inject", sessionKey=session, message="x" * 200)
        )


async def _bare_fan_out(url: str) -> float:
    """The same for a server that only commits a row and sends it to its connections."""
    async with connect(url, compression=None) as sender:
        sockets = await _open_many(
            SUBSCRIBERS, lambda: connect(url, compression=None, ping_interval=None).__aenter__()
        )

        async def publish() -> None:
            await sender.send(json.dumps({"id": "1", "method": "publish"}))
            await sender.recv()

        return (await _published(sockets, publish))[0]


async def _published(
    sockets: list[ClientConnection], publish: Callable[[], Awaitable[object]]
) -> tuple[float, float]:
    """Median time until the last socket has a published message, and until `publish` returns."""
    lasts, answers = [], []
    for _ in range(APPENDS):
        receiving = [asyncio.ensure_future(_receive_message(each)) for each in sockets]
        await asyncio.sleep(0.05)
        start = time.perf_counter()
        await publish()
        answers.append(time.perf_counter() - start)
        lasts.append(max(await asyncio.gather(*receiving)) - start)
    for opened in sockets:
        opened.transport.abort()
    return statistics.median(lasts), statistics.median(answers)


async def _receive_message(socket: ClientConnection) -> float:
    """The time at which a message arrives. The messages of both servers are recognised by their key."""
    while b"agent:main:" not in (await socket.recv(decode=False)):
        pass
    return time.perf_counter()


async def _idle(url: str, pid: int) -> float:
    sockets = await _open_many(IDLE, lambda: _open(url))
    memory = rss_mb(pid)
    for opened in sockets:
        opened.transport.abort()
    return memory


def _pages() -> tuple[float, float, float, float]:
    """Pages per second alone and during turns, and the slowdown of turns of two models by them."""
    with model_server() as model, tempfile.TemporaryDirectory() as folder:
        providers = {
            name: {"baseUrl": f"{model}/{name}", "models": [{"id": "m"}]} for name in ("short", "soon")
        }
        settings = {"agents": {"defaults": {"model": "short/m"}}, "models": {"providers": providers}}
        with (
            gateway(Path(folder), settings) as (url, _),
            multiprocessing.get_context("spawn").Pool(1) as pool,
        ):
            uvloop.run(_fill(url))
            rate = pool.apply(_read_pages, (url, PAGES_S / 4, math.inf))
            slowdown, rate_during_turns = uvloop.run(_slowdown(url, pool, "soon/m"))
            slowdown_instant, _ = uvloop.run(_slowdown(url, pool, "short/m"))
            return rate, rate_during_turns, slowdown, slowdown_instant


async def _fill(url: str) -> None:
    async with open_client(url, TOKEN) as client:
        for i in range(60):
            await _turn(client, "hook:pages", f"{i} " + "word " * 40)


async def _slowdown(url: str, pool: Pool, model: str) -> tuple[float, float]:
    """How much longer turns take while pages are read, and how many pages per second were read."""
    async with open_client(url, TOKEN) as client:
        alone: list[float] = []
        with_pages: list[float] = []
        rates = []
        for _ in range(4):  # alternating, so that noise of the machine affects both
            alone += await _turns(client, PAGES_S / 8, model)
            read = pool.apply_async(_read_pages, (url, PAGES_S / 8, PAGE_RATE))
            with_pages += await _turns(client, PAGES_S / 8, model)
            rates.append(await asyncio.to_thread(read.get))
        return statistics.median(with_pages) / statistics.median(alone), statistics.median(rates)


def _read_pages(url: str, seconds: float, rate: float) -> float:
    """Read pages at most at `rate`, in the pool's process. Returns how many per second were read."""
    host, port = url.removeprefix("ws://").split(":")
    request = (
        "GET /sessions/hook:pages/history?limit=50 HTTP/1.1\r\n"
        f"Host: {host}:{port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    ).encode()
    count, start = 0, time.perf_counter()
    with socket.create_connection((host, int(port))) as connection:
        while (passed := time.perf_counter() - start) < seconds:
            connection.sendall(request)
            answer = connection.recv(1 << 20)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), answer
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            while len(body) < length:
                body += connection.recv(1 << 20)
            count += 1
            time.sleep(max(0.0, count / rate - passed))
    return count / seconds


async def _turns(client: Client, seconds: float, model: str) -> list[float]:
    durations, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        # A new session each time: turns of a growing one take longer anyway.
        await _turn(client, f"hook:{new_id()}", "Hi", model=model)
        durations.append(time.perf_counter() - start)
    return durations


async def _turn(client: Client, session: str, text: str, **params: str) -> None:
    answer = await client.call("agent", message=text, sessionKey=session, idempotencyKey=new_id(), **params)
    assert answer["status"] == "ok", answer
