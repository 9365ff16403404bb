"""Turns of other sessions while a session of 20,000 messages is summarised in the same gateway.

Two gateways with the same sessions run side by side, and only one of them summarises. Turns are started in
both by turns, so that whatever else the machine does slows both. The model is a server in its own process.
It takes a fifth of a second for each part of the summary, less than any real one.

The figure is the mean without the slowest hundredth: a median would hide short stalls. It is divided by the
same ratio measured while neither gateway summarises.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

from bench import Figure
from bench._gateways import TOKEN, gateway
from bench._model_server import model_server
from hobnob.client import Client, open_client
from hobnob.keys import parse
from hobnob.store import Tx, entries, open_store, sessions
from hobnob.types import Session

MESSAGES, TURNS, ROUNDS = 20_000, 60, 4
Times = tuple[list[float], list[float]]  # of the gateway that summarises, and of the other one
_numbers = count()


def run() -> list[Figure]:
    with ExitStack() as stack:
        settings = _settings(stack.enter_context(model_server()))
        homes = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        for home in homes:
            uvloop.run(_fill(home))
        urls = [stack.enter_context(gateway(home, settings))[0] for home in homes]
        idle, busy, took = uvloop.run(_measure(*urls))
    bias, ratio = _mean(idle[0]) / _mean(idle[1]), _mean(busy[0]) / _mean(busy[1])
    return [
        Figure(
            f"a turn beside a compaction of {MESSAGES:,} messages ({took:.0f} s)",
            f"{_mean(busy[0]) * 1e3:.2f} ms",
            f"{_mean(busy[1]) * 1e3:.2f} ms, without",
            ratio / bias,
            "≤ 1.10",
            ratio / bias <= 1.1,
        )
    ]


def _settings(url: str) -> dict[str, Any]:
    def provider(path: str, window: int) -> dict[str, Any]:
        model = {"id": "m", "contextWindow": window}
        return {"baseUrl": f"{url}/{path}", "apiKey": "-", "api": "openai-completions", "models": [model]}

    compaction = {"keepRecentTokens": 5_000, "model": "summaries/m", "memoryFlush": {"enabled": False}}
    providers = {"turns": provider("short", 200_000), "summaries": provider("summary", 64_000)}
    defaults = {"model": "turns/m", "compaction": compaction}
    return {"agents": {"defaults": defaults}, "models": {"providers": providers}}


async def _fill(home: Path) -> None:
    """Make the long sessions, one for each round."""

    def append(tx: Tx, session_id: str, first: int) -> None:
        for number in range(first, first + 500):
            role = "assistant" if number % 2 else "user"
            text = f"Message {number}. " + "words " * 40
            entries.append(tx, session_id, {"role": role, "content": text})

    async with open_store(f"sqlite:///{home}/hobnob.db") as store:
        for number in range(ROUNDS):
            session = Session.of(parse(_long(number)))
            await store.write(sessions.create, session)
            for first in range(0, MESSAGES, 500):
                await store.write(append, session.session_id, first)


async def _measure(summarising: str, other: str) -> tuple[Times, Times, float]:
    """Times of turns while nothing is summarised, and while it is; and the seconds of a compaction."""
    async with open_client(summarising, TOKEN) as first, open_client(other, TOKEN) as second:
        await _turns(first, second)
        await asyncio.sleep(10)  # until the mirror and the full-text index have caught up
        idle: Times = ([], [])
        busy: Times = ([], [])
        took = []
        for number in range(ROUNDS):
            for _ in range(4):
                _add(idle, await _turns(first, second))
            started = time.perf_counter()
            async with open_client(summarising, TOKEN) as waiting:
                asked = await waiting.call("sessions.compact", key=_long(number), timeoutMs=0)
                ended = asyncio.ensure_future(waiting.wait(asked["runId"], 300))
                while not ended.done():
                    _add(busy, await _turns(first, second, until=ended))
                assert (await ended)["status"] == "ok"
            took.append(time.perf_counter() - started)
        return idle, busy, statistics.median(took)


async def _turns(first: Client, second: Client, until: asyncio.Future[Any] | None = None) -> Times:
    """Turns of new sessions in both gateways, one after the other."""
    key = f"agent:main:other{next(_numbers)}"
    times: Times = ([], [])
    for number in range(TURNS):
        for index in (0, 1) if number % 2 else (1, 0):
            times[index].append(await _turn((first, second)[index], key))
        if until is not None and until.done():
            break
    return times


async def _turn(client: Client, key: str) -> float:
    start = time.perf_counter()
    sent = await client.call("chat.send", sessionKey=key, message="Hello", idempotencyKey=f"{next(_numbers)}")
    await client.wait(sent["runId"])
    return time.perf_counter() - start


def _add(total: Times, more: Times) -> None:
    for into, found in zip(total, more, strict=True):
        into += found


def _long(number: int) -> str:
    return f"agent:main:long{number}"


def _mean(times: list[float]) -> float:
    return statistics.mean(sorted(times)[: len(times) * 99 // 100])
