"""Turns of one session while a session of 20,000 messages is summarised in the same gateway.

The model takes a fifth of a second for each part of the summary, less than any real one.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import orjson
import uvloop

from bench import Figure
from hobnob import config
from hobnob.gateway import Gateway, open_gateway
from hobnob.keys import parse
from hobnob.policy import Operator
from hobnob.store import Tx, entries, sessions
from hobnob.types import Session, Turn

MESSAGES, TURNS, ROUNDS = 20_000, 30, 5
LONG, OTHER = "agent:main:long", "agent:main:other"


def run() -> list[Figure]:
    alone, beside, took = uvloop.run(_measure())
    ratio = beside / alone
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


async def _measure() -> tuple[float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        defaults = {"contextTokens": 32_000, "compaction": {"keepRecentTokens": 5_000}}
        summary = {"text": "They talked about words, again and again.", "delayMs": 200}
        scripts = {"models": {"rehearsal": {"scripts": {"compaction": [summary]}}}}
        (home / "hobnob.json5").write_bytes(orjson.dumps({"agents": {"defaults": defaults}} | scripts))
        loaded = config.load(home / "hobnob.json5", env={"HOBNOB_HOME": folder})
        async with open_gateway(loaded, env={}, grace_s=0) as gateway:
            session = await gateway.store.write(lambda tx: sessions.create(tx, Session.of(parse(LONG))))
            for first in range(0, MESSAGES, 500):
                await gateway.store.write(_fill, session.session_id, first)
            await _turns(gateway)
            alone, beside, took = [], [], 0.0
            for _ in range(ROUNDS):
                alone += await _turns(gateway)
            started = time.perf_counter()
            turn = await gateway.sessions.send(Operator(), LONG, "/compact")
            compacting = asyncio.ensure_future(gateway.sessions.wait(turn.turn_id, 300))
            while not compacting.done():
                beside += await _turns(gateway, until=compacting)
            took = time.perf_counter() - started
            ended = await compacting
            assert ended.outcome == "ok", ended.error
            return statistics.median(alone), statistics.median(beside), took


def _fill(tx: Tx, session_id: str, first: int) -> None:
    for number in range(first, first + 500):
        role = "assistant" if number % 2 else "user"
        entries.append(tx, session_id, {"role": role, "content": f"Message {number}. " + "words " * 40})


async def _turns(gateway: Gateway, until: asyncio.Future[Turn] | None = None) -> list[float]:
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        turn = await gateway.sessions.send(Operator(), OTHER, "say hi")
        await gateway.sessions.wait(turn.turn_id)
        times.append(time.perf_counter() - start)
        if until is not None and until.done():
            break
    return times
