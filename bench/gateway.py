"""What clients cost: a request, a message told to many, many that are idle, pages over HTTP beside turns."""

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
from bench._gateways import TOKEN, bare_server, cpu_s, gateway, rss_mb
from bench._model_server import model_server
from hobnob.client import Client, open_client
from hobnob.types import new_id

CALLS = 20_000
AT_A_TIME = 32
SUBSCRIBERS = 1_000
APPENDS = 15
IDLE = 5_000
PAGES_S = 8.0
PACE = 205  # pages a second are asked for: 200 are promised
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
        last_s, first_s = uvloop.run(_told(url))
        before = rss_mb(pid)
        held = uvloop.run(_idle(url, pid))
    rate, least, soon, at_once = _pages()
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
            f"{first_s * 1000:.0f} ms, to the first",
            last_s / first_s,
            "< 60 ms",
            last_s < 0.06,
        ),
        Figure(
            f"{IDLE:,} idle clients",
            f"{held:.0f} MB",
            f"{before:.0f} MB before",
            held / before,
            "< 250 MB",
            held < 250,
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
            f"turns of a 50 ms model, beside {least:.0f} pages/s",
            f"{soon:.2f} of their time",
            "1.00 without",
            soon,
            "≤ 1.10",
            soon <= 1.10 and least >= 200,
        ),
        Figure(
            "the same, of a model that takes no time",
            f"{at_once:.2f} of their time",
            "1.00 without",
            at_once,
            "(told)",
            True,
        ),
    ]


async def _call_cost(url: str, pid: int, *, hello: bool) -> float:
    """CPU of the server per call, with some always under way."""
    async with connect(url, compression=None) as socket:
        if hello:
            await socket.recv()
            await _ask(socket, "connect", CONNECT)
        frame = json.dumps({"type": "req", "id": "1", "method": "agent.identity.get", "params": {}})

        async def talk(count: int) -> None:
            for _ in range(AT_A_TIME):
                await socket.send(frame)
            for i in range(count):
                await socket.recv()
                if i < count - AT_A_TIME:
                    await socket.send(frame)

        await talk(2_000)
        start = cpu_s(pid)
        await talk(CALLS)
        return (cpu_s(pid) - start) / CALLS


async def _ask(socket: ClientConnection, method: str, params: dict[str, object]) -> None:
    await socket.send(json.dumps({"type": "req", "id": "1", "method": method, "params": params}))
    while json.loads(await socket.recv()).get("id") != "1":
        pass


async def _open(url: str) -> ClientConnection:
    socket = await connect(url, compression=None, ping_interval=None)
    await socket.recv()
    await _ask(socket, "connect", CONNECT)
    return socket


async def _many(count: int, make: Callable[[], Awaitable[ClientConnection]]) -> list[ClientConnection]:
    found: list[ClientConnection] = []
    while len(found) < count:
        found += await asyncio.gather(*(make() for _ in range(min(100, count - len(found)))))
    return found


async def _told(url: str) -> tuple[float, float]:
    """From the request that adds a message to when the last and the first of many have it, at the median."""
    async with open_client(url, TOKEN) as client:
        await client.call("sessions.create", key="agent:main:dashboard:told")

        async def subscriber() -> ClientConnection:
            socket = await _open(url)
            await _ask(socket, "sessions.messages.subscribe", {"key": "agent:main:dashboard:told"})
            return socket

        sockets = await _many(SUBSCRIBERS, subscriber)
        lasts, firsts = [], []
        for _ in range(APPENDS):
            arrived: list[float] = []

            async def heard(socket: ClientConnection, arrived: list[float] = arrived) -> None:
                while b"session.message" not in (await socket.recv(decode=False)):
                    pass
                arrived.append(time.perf_counter())

            waiting = [asyncio.ensure_future(heard(each)) for each in sockets]
            await asyncio.sleep(0.05)
            start = time.perf_counter()
            await client.call("chat.inject", sessionKey="agent:main:dashboard:told", message="x" * 200)
            await asyncio.gather(*waiting)
            lasts.append(max(arrived) - start)
            firsts.append(min(arrived) - start)
        for opened in sockets:
            opened.transport.abort()
        return statistics.median(lasts), statistics.median(firsts)


async def _idle(url: str, pid: int) -> float:
    sockets = await _many(IDLE, lambda: _open(url))
    held = rss_mb(pid)
    for opened in sockets:
        opened.transport.abort()
    return held


def _pages() -> tuple[float, float, float, float]:
    """Pages a second, how many beside turns, and how much longer turns of two models take then."""
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
            soon, least = uvloop.run(_beside(url, pool, "soon/m"))
            at_once, _ = uvloop.run(_beside(url, pool, "short/m"))
            return rate, least, soon, at_once


async def _fill(url: str) -> None:
    async with open_client(url, TOKEN) as client:
        for i in range(60):
            await _turn(client, "hook:pages", f"{i} " + "word " * 40)


async def _beside(url: str, pool: Pool, model: str) -> tuple[float, float]:
    async with open_client(url, TOKEN) as client:
        alone: list[float] = []
        beside: list[float] = []
        rates = []
        for _ in range(4):  # in turn, so that a slow moment of the machine is in both
            alone += await _turns(client, PAGES_S / 8, model)
            read = pool.apply_async(_read_pages, (url, PAGES_S / 8, PACE))
            beside += await _turns(client, PAGES_S / 8, model)
            rates.append(await asyncio.to_thread(read.get))
        return statistics.median(beside) / statistics.median(alone), statistics.median(rates)


def _read_pages(url: str, seconds: float, pace: float) -> float:
    """Read pages at a pace, from a process of its own. Returns how many a second there were."""
    host, port = url.removeprefix("ws://").split(":")
    asked = (
        "GET /sessions/hook:pages/history?limit=50 HTTP/1.1\r\n"
        f"Host: {host}:{port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    ).encode()
    count, start = 0, time.perf_counter()
    with socket.create_connection((host, int(port))) as connection:
        while (passed := time.perf_counter() - start) < seconds:
            connection.sendall(asked)
            answer = connection.recv(1 << 20)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), answer
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            while len(body) < length:
                body += connection.recv(1 << 20)
            count += 1
            time.sleep(max(0.0, count / pace - passed))
    return count / seconds


async def _turns(client: Client, seconds: float, model: str) -> list[float]:
    taken, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        # Another session each time: one that grows takes longer anyhow.
        await _turn(client, f"hook:{new_id()}", "Hi", model=model)
        taken.append(time.perf_counter() - start)
    return taken


async def _turn(client: Client, session: str, text: str, **more: str) -> None:
    answer = await client.call("agent", message=text, sessionKey=session, idempotencyKey=new_id(), **more)
    assert answer["status"] == "ok", answer
