"""CPU of streaming a reply of 400 chunks through the OpenAI adapter, against a bare client.

The floor reads the response with aiohttp, splits it and parses each chunk, nothing else. The server runs in
its own process, so that only the client is measured; the two alternate, so that noise of the machine affects
both. Chunks come in bursts, as from a proxy, and one by one, as from a model.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import aiohttp
import orjson

from bench import Figure
from bench._model_server import CHUNKS, model_server
from hobnob.config import Settings
from hobnob.models import Finished, Model, Request
from hobnob.models.catalog import open_models

ARRIVALS = {"in bursts": (60, "/bursts"), "one by one": (12, "/paced")}  # rounds, path at the server
WARM_UP = 3  # rounds that include connecting and importing
BUDGET = 2.0


def run() -> list[Figure]:
    with model_server() as url:
        return [_figure(arrival, url + path, rounds) for arrival, (rounds, path) in ARRIVALS.items()]


def _figure(arrival: str, url: str, rounds: int) -> Figure:
    value, floor, ratio = asyncio.run(_measure(url, rounds))
    name = f"CPU of a streamed reply of 400 chunks, {arrival}"
    return Figure(name, f"{value:.1f} ms", f"{floor:.1f} ms", ratio, f"< {BUDGET:.2f}", ratio < BUDGET)


async def _measure(url: str, rounds: int) -> tuple[float, float, float]:
    settings = Settings.model_validate({"models": {"providers": {"bench": {"baseUrl": url}}}})
    async with open_models(settings, {}) as models, aiohttp.ClientSession() as session:
        model = models.model("bench/m")
        values, floors = [], []
        for _ in range(rounds):
            floors.append(await _timed(lambda: _bare(session, f"{url}/chat/completions")))
            values.append(await _timed(lambda: _stream(model)))
    value, floor = statistics.median(values[WARM_UP:]), statistics.median(floors[WARM_UP:])
    return value, floor, value / floor


async def _timed(step: Callable[[], Awaitable[None]]) -> float:
    start = time.process_time()
    await step()
    return (time.process_time() - start) * 1000


async def _stream(model: Model) -> None:
    request = Request(model="m", system="", messages=[{"role": "user", "content": "Hi"}])
    events = [event async for event in model.stream(request)]
    assert isinstance(events[-1], Finished) and len(events) == CHUNKS + 1, events[-1]


async def _bare(session: aiohttp.ClientSession, url: str) -> None:
    chunks, rest = [], b""
    async with session.post(url, json={"messages": [{"role": "user", "content": "Hi"}]}) as response:
        async for read in response.content.iter_any():
            *lines, rest = (rest + read).split(b"\n")
            chunks += [orjson.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    assert len(chunks) == CHUNKS + 1
