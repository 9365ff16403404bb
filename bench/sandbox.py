"""The cost of a sandboxed command over a plain process, and of turns during many commands."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from bench import Figure
from hobnob.gateway import Gateway
from hobnob.testing import OWNER, rehearse, say
from hobnob.tools import Context, Toolbox

TIMES = 60
PARALLEL = 50
SETTINGS: dict[str, Any] = {
    "agents": {"defaults": {"maxConcurrent": 128, "sandbox": {"mode": "all"}}},
    "tools": {"exec": {"maxRunning": 100}},
}


def run() -> list[Figure]:
    return uvloop.run(_run())


async def _run() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        async with rehearse(Path(folder), SETTINGS) as gateway:
            turn = await say(gateway, "hi")
            session = await gateway.sessions.resolve(OWNER, turn.session_key)
            box, context = Toolbox(gateway.tools.tools), Context(session, turn)

            async def sandboxed(command: str) -> None:
                result = await box.call(context, "exec", {"command": command})
                assert '"status":"ok"' in result.text, result.text

            plain, confined = [], []
            for _ in range(TIMES):  # alternating, so that noise of the machine affects both
                plain.append(await _timed(_plain()))
                confined.append(await _timed(sandboxed("true")))
            floor, cost = statistics.median(plain), statistics.median(confined)
            alone = statistics.median([await _timed(_turn(gateway, n)) for n in range(20)])
            during = await _turn_during_commands(gateway, sandboxed)
    overhead = cost - floor
    return [
        Figure(
            "exec of true in the sandbox, over a plain process",
            f"{overhead * 1000:.1f} ms",
            f"{floor * 1000:.1f} ms, a plain process",
            cost / floor,
            "< 40 ms",
            overhead < 0.040,
        ),
        Figure(
            f"a turn during {PARALLEL} sandboxed commands",
            f"{during * 1000:.1f} ms",
            f"{alone * 1000:.1f} ms, a turn alone",
            during / alone,
            "< 250 ms",
            during < 0.250,
        ),
    ]


async def _plain() -> None:
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()


async def _turn(gateway: Gateway, n: int) -> None:
    assert (await say(gateway, "say: hi", f"hook:{n}")).outcome == "ok"


async def _turn_during_commands(gateway: Gateway, sandboxed: Any) -> float:
    """The median turn while many commands run; each that ends is started again."""
    done = asyncio.Event()

    async def run_commands() -> None:
        while not done.is_set():
            await sandboxed("sleep 0.5")

    async with asyncio.TaskGroup() as group:
        for _ in range(PARALLEL):
            group.create_task(run_commands())
        await asyncio.sleep(1)
        times = [await _timed(_turn(gateway, n)) for n in range(20)]
        done.set()
    return statistics.median(times)


async def _timed(work: Any) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start
