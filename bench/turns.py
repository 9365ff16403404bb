"""The cost of a turn: through `hobnob serve`, over WebSocket, with a model behind loopback HTTP.

The floor is the time of the same model server with a bare client.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import uvloop

from bench import Figure, median_s
from bench._gateways import TOKEN, gateway, rss_mb
from bench._model_server import model_server
from hobnob.client import Client, open_client
from hobnob.types import new_id

TURNS = 150
SESSIONS = 16
PARALLEL_TURNS = 1600
WAITING = 1000
PACKAGES = "orjson, pydantic, rich.console, starlette.requests, typer, uvicorn, uvloop, websockets"


def run() -> list[Figure]:
    imports_s = median_s(_import_packages, 3)
    with model_server() as model, tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with _gateway(Path(folder), model) as (url, pid):
            asyncio.run(_health(url))
            start_s, idle = time.perf_counter() - started, rss_mb(pid)
            turn_s, model_s = asyncio.run(_latency(url, model))
            rate = uvloop.run(_throughput(url))
            bare = uvloop.run(_bare_rate(model))
            before = rss_mb(pid)
            extra = asyncio.run(_waiting(url, pid)) - before
    above = (turn_s - model_s) * 1000
    model_ms = f"{model_s * 1000:.1f} ms, the model alone"
    return [
        Figure(
            "start to first answered call",
            f"{start_s:.2f} s",
            f"{imports_s:.2f} s, importing the packages",
            start_s / imports_s,
            "≤ 0.55 s",
            start_s <= 0.55,
        ),
        Figure("idle memory", f"{idle:.0f} MB", "(none)", idle / 70, "< 70 MB", idle < 70),
        Figure(
            "one turn, agent to its answer",
            f"{turn_s * 1000:.1f} ms",
            model_ms,
            turn_s / model_s,
            "< 8 ms above",
            above < 8,
        ),
        Figure(
            "turns, 16 sessions in parallel",
            f"{rate:,.0f}/s",
            f"{bare:,.0f}/s, the model alone",
            rate / bare,
            "> 300/s",
            rate > 300,
        ),
        Figure(
            "1,000 turns waiting on slow models",
            f"{extra:.0f} MB above",
            f"{before:.0f} MB",
            extra / before,
            "< 150 MB",
            extra < 150,
        ),
    ]


def _import_packages() -> None:
    """Start Python and import the packages the gateway uses, without Hobnob."""
    subprocess.run([sys.executable, "-c", f"import {PACKAGES}"], check=True)  # noqa: S603 - a fixed command


@contextmanager
def _gateway(home: Path, model: str) -> Iterator[tuple[str, int]]:
    providers = {
        name: {"baseUrl": f"{model}/{name}", "models": [{"id": "m"}], "maxConcurrent": 2 * WAITING}
        for name in ("short", "slow")
    }
    settings = {
        "agents": {"defaults": {"model": "short/m", "maxConcurrent": 2 * WAITING}},
        "models": {"providers": providers},
    }
    with gateway(home, settings) as started:
        yield started


async def _health(url: str) -> None:
    async with open_client(url, TOKEN) as client:
        await client.call("health")


async def _turn(client: Client, session: str) -> None:
    answer = await client.call("agent", message="Hi", sessionKey=session, idempotencyKey=new_id())
    assert answer["status"] == "ok", answer


async def _latency(url: str, model: str) -> tuple[float, float]:
    turns, alone = [], []
    async with open_client(url, TOKEN) as client, aiohttp.ClientSession() as session:
        for i in range(TURNS):
            start = time.perf_counter()
            await _bare(session, model)
            alone.append(time.perf_counter() - start)
            start = time.perf_counter()
            await _turn(client, f"hook:l{i % 20}")
            turns.append(time.perf_counter() - start)
    return statistics.median(turns[10:]), statistics.median(alone[10:])


async def _bare(session: aiohttp.ClientSession, model: str) -> None:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    async with session.post(f"{model}/short/chat/completions", json=body) as response:
        await response.read()


async def _bare_rate(model: str) -> float:
    async with aiohttp.ClientSession() as session:

        async def run_calls() -> None:
            for _ in range(PARALLEL_TURNS // SESSIONS):
                await _bare(session, model)

        start = time.perf_counter()
        await asyncio.gather(*(run_calls() for _ in range(SESSIONS)))
        return PARALLEL_TURNS / (time.perf_counter() - start)


async def _throughput(url: str) -> float:
    async with open_client(url, TOKEN) as client:

        async def run_turns(number: int) -> None:
            for i in range(PARALLEL_TURNS // SESSIONS):
                await _turn(client, f"hook:t{number}-{i // 10}")

        start = time.perf_counter()
        await asyncio.gather(*(run_turns(i) for i in range(SESSIONS)))
        return PARALLEL_TURNS / (time.perf_counter() - start)


async def _waiting(url: str, pid: int) -> float:
    """Memory of the gateway while 1,000 turns wait for their model."""
    async with open_client(url, TOKEN) as client:
        for i in range(WAITING):
            params = {
                "message": "Hi",
                "sessionKey": f"hook:w{i}",
                "idempotencyKey": new_id(),
                "model": "slow/m",
            }
            answers = client.answers("agent", **params)
            assert (await anext(answers))["status"] == "accepted"
        while (await client.call("health"))["runningTurns"] < WAITING:  # noqa: ASYNC110 - nothing to wait on
            await asyncio.sleep(0.1)
        return rss_mb(pid)
