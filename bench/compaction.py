"""Turns of other sessions while a session of 20,000 messages is summarised in the same gateway.

Both models are a server in its own process. It takes a fifth of a second for each part of the summary, less
than any real one. Each round compares turns beside a compaction with turns just before and after it, all in
sessions of the same length, by their mean without the slowest hundredth: a median would hide short stalls.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import uvloop

from bench import Figure
from bench._model_server import model_server
from hobnob import config
from hobnob.gateway import Gateway, open_gateway
from hobnob.keys import parse
from hobnob.policy import Operator
from hobnob.store import Tx, entries, sessions
from hobnob.types import Session, Turn

MESSAGES, TURNS, ROUNDS = 20_000, 60, 5
_numbers = count()


def run() -> list[Figure]:
    with model_server() as url:
        rounds = uvloop.run(_measure(url))
    ratio = statistics.median(beside / alone for alone, beside, _ in rounds)
    alone, beside, took = (statistics.median(column) for column in zip(*rounds, strict=True))
    return [
        Figure(
            f"a turn beside a compaction of {MESSAGES:,} messages ({took:.1f} s)",
            f"{beside * 1e3:.2f} ms",
            f"{alone * 1e3:.2f} ms, alone",
            ratio,
            "≤ 1.10",
            ratio <= 1.1,
        )
    ]


def _settings(url: str) -> dict[str, Any]:
    def provider(path: str, window: int) -> dict[str, Any]:
        model = {"id": "m", "contextWindow": window}
        return {"baseUrl": f"{url}/{path}", "apiKey": "-", "api": "openai-completions", "models": [model]}

    compaction = {"keepRecentTokens": 5_000, "model": "summaries/m"}
    providers = {"turns": provider("short", 200_000), "summaries": provider("summary", 64_000)}
    defaults = {"model": "turns/m", "compaction": compaction}
    return {"agents": {"defaults": defaults}, "models": {"providers": providers}}


async def _measure(url: str) -> list[tuple[float, float, float]]:
    """For each round: a turn alone, a turn beside a compaction, and the seconds of the compaction."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "hobnob.json5").write_bytes(orjson.dumps(_settings(url)))
        loaded = config.load(home / "hobnob.json5", env={"HOBNOB_HOME": folder})
        async with open_gateway(loaded, env={}, grace_s=0) as gateway:
            for number in range(ROUNDS):
                await _create(gateway, f"agent:main:long{number}")
            await asyncio.sleep(5)  # until the mirror and the full-text index have caught up
            await _turns(gateway)
            return [await _round(gateway, f"agent:main:long{number}") for number in range(ROUNDS)]


async def _round(gateway: Gateway, key: str) -> tuple[float, float, float]:
    alone = [took for _ in range(4) for took in await _turns(gateway)]
    started = time.perf_counter()
    turn = await gateway.sessions.send(Operator(), key, "/compact")
    compacting = asyncio.ensure_future(gateway.sessions.wait(turn.turn_id, 300))
    beside: list[float] = []
    while not compacting.done():
        beside += await _turns(gateway, until=compacting)
    took = time.perf_counter() - started
    ended = await compacting
    assert ended.outcome == "ok" and "summarised" in str(ended.reply), ended
    alone += [took for _ in range(4) for took in await _turns(gateway)]
    return _mean(alone), _mean(beside), took


def _mean(times: list[float]) -> float:
    return statistics.mean(sorted(times)[: len(times) * 99 // 100])


async def _create(gateway: Gateway, key: str) -> None:
    session = await gateway.store.write(lambda tx: sessions.create(tx, Session.of(parse(key))))
    for first in range(0, MESSAGES, 500):
        await gateway.store.write(_fill, session.session_id, first)


def _fill(tx: Tx, session_id: str, first: int) -> None:
    for number in range(first, first + 500):
        role = "assistant" if number % 2 else "user"
        entries.append(tx, session_id, {"role": role, "content": f"Message {number}. " + "words " * 40})


async def _turns(gateway: Gateway, until: asyncio.Future[Turn] | None = None) -> list[float]:
    """Turns of a new session, one after the other."""
    key, times = f"agent:main:other{next(_numbers)}", []
    for _ in range(TURNS):
        start = time.perf_counter()
        turn = await gateway.sessions.send(Operator(), key, "Hello")
        await gateway.sessions.wait(turn.turn_id)
        times.append(time.perf_counter() - start)
        if until is not None and until.done():
            break
    return times
