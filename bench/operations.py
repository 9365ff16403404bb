"""The CPU time of the gateway per operation, beside that of a bare server that does only the unavoidable.

CPU time is compared instead of wall time because it changes less when other processes use the machine.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop
from websockets.asyncio.client import connect

from bench import Figure
from bench._gateways import TOKEN, bare_process, cpu_ns, gateway
from bench._model_server import model_server
from hobnob.client import Client, open_client
from hobnob.types import new_id

ROUNDS = 3  # the median round counts
LISTED = 200
LONG = (10, 300, 3_000)  # messages of a session before the measured turns
Operation = Callable[[Client, int], Awaitable[Any]]


def run() -> list[Figure]:
    with model_server() as model, tempfile.TemporaryDirectory() as folder:
        with _bare(folder, model) as (url, pid):
            floors = uvloop.run(_floors(url, pid))
        with _gateway(Path(folder) / "gateway", model) as (url, pid):
            ours = uvloop.run(_measure(url, pid))
    return [_figure(name, ours[name], floors, *_GOALS[name]) for name in _GOALS]


# Name: the floor it is compared with, and the goal in ms.
_GOALS: dict[str, tuple[str, float]] = {
    "one turn at a time": ("turn", 5.0),
    "turns, 16 at a time": ("turn, 16 at a time", 2.8),
    "turns, 64 at a time": ("turn, 16 at a time", 2.3),
    "a turn after 10 messages": ("turn", 5.5),
    "a turn after 300 messages": ("turn", 7.0),
    "a turn after 3,000 messages": ("turn", 12.0),
    "sessions.list of 50": ("list of 50", 1.2),
    "sessions.list of 200": ("list of 200", 3.0),
    "health": ("echo", 0.3),
    "sessions.create, 16 at a time": ("append, 16 at a time", 0.35),
    "chat.inject, one at a time": ("append", 0.6),
    "chat.inject, 16 at a time": ("append, 16 at a time", 0.2),
    "chat.history of 50": ("list of 50", 0.45),
}


def _figure(name: str, value: float, floors: dict[str, float], floor: str, goal: float) -> Figure:
    bare = floors[floor]
    return Figure(
        name, f"{value:.2f} ms", f"{bare:.2f} ms, bare {floor}", value / bare, f"≤ {goal:g} ms", value <= goal
    )


@contextmanager
def _bare(folder: str, model: str) -> Iterator[tuple[str, int]]:
    with bare_process("-m", "bench._bare_server", folder, model) as started:
        yield started


@contextmanager
def _gateway(home: Path, model: str) -> Iterator[tuple[str, int]]:
    home.mkdir()
    provider = {"baseUrl": f"{model}/short", "models": [{"id": "m"}], "maxConcurrent": 200}
    settings = {
        "agents": {"defaults": {"model": "short/m", "maxConcurrent": 200}},
        "models": {"providers": {"short": provider}},
    }
    with gateway(home, settings) as started:
        yield started


async def _measure(url: str, pid: int) -> dict[str, float]:
    async with open_client(url, TOKEN) as client:
        await _many(client, _create_named, LISTED, 16)
        await client.call("sessions.create", key="agent:main:notes")
        found = {}
        for name, operation, count, together in (
            ("health", _call("health"), 1_500, 1),
            ("sessions.create, 16 at a time", _create, 800, 16),
            ("chat.inject, one at a time", _inject, 400, 1),
            ("chat.inject, 16 at a time", _inject, 1_600, 16),
            ("chat.history of 50", _call("chat.history", sessionKey="agent:main:notes", limit=50), 500, 1),
            ("sessions.list of 50", _call("sessions.list", limit=50), 200, 1),
            ("sessions.list of 200", _call("sessions.list", limit=200), 100, 1),
            ("one turn at a time", _turn, 150, 1),
            ("turns, 16 at a time", _turn, 480, 16),
            ("turns, 64 at a time", _turn, 640, 64),
        ):
            found[name] = await _cost_ms(pid, client, operation, count, together)
        for length in LONG:
            session = f"agent:main:hook:long-{length}"
            await _lengthen(client, session, length)
            found[f"a turn after {length:,} messages"] = await _cost_ms(
                pid, client, _turn_in(session), max(10, min(60, length // 5)), 1
            )
        return found


async def _cost_ms(pid: int, client: Client, operation: Operation, count: int, together: int) -> float:
    """The CPU time of the gateway per operation: the median of several rounds."""
    costs = []
    for _ in range(ROUNDS):
        start = cpu_ns(pid)
        await _many(client, operation, count // ROUNDS, together)
        costs.append((cpu_ns(pid) - start) / (count // ROUNDS) / 1e6)
    return sorted(costs)[ROUNDS // 2]


async def _many(client: Client, operation: Operation, count: int, together: int) -> None:
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await operation(client, number)

    await asyncio.gather(*(work() for _ in range(together)))


def _call(method: str, **params: Any) -> Operation:
    return lambda client, _: client.call(method, **params)


async def _create_named(client: Client, number: int) -> None:
    await client.call("sessions.create", key=f"agent:main:hook:list-{number}", label=f"Session {number}")


async def _create(client: Client, _: int) -> None:
    await client.call("sessions.create", key=f"agent:main:hook:{new_id()}")


async def _inject(client: Client, _: int) -> None:
    await client.call("chat.inject", sessionKey="agent:main:notes", message="word " * 40)


async def _turn(client: Client, number: int) -> None:
    await _turn_in(f"agent:main:hook:turn-{new_id() if number % 10 == 0 else number % 64}")(client, number)


def _turn_in(session: str) -> Operation:
    async def turn(client: Client, _: int) -> None:
        accepted = await client.call("chat.send", sessionKey=session, message="Hi", idempotencyKey=new_id())
        ended = await client.call("agent.wait", runId=accepted["runId"])
        assert ended["status"] == "ok", ended

    return turn


async def _lengthen(client: Client, session: str, length: int) -> None:
    await client.call("sessions.create", key=session)
    for start in range(0, length, 64):
        await asyncio.gather(
            *(
                client.call("chat.inject", sessionKey=session, message=f"{number} " + "word " * 40)
                for number in range(start, min(start + 64, length))
            )
        )


async def _floors(url: str, pid: int) -> dict[str, float]:
    async with connect(url, compression=None) as socket:

        async def cost_ms(method: str, params: Any, count: int, together: int) -> float:
            frame = json.dumps({"id": "1", "method": method, "params": params})
            costs = []
            for _ in range(ROUNDS):
                start = cpu_ns(pid)
                for _ in range(count // ROUNDS // together):
                    for _ in range(together):
                        await socket.send(frame)
                    for _ in range(together):
                        await socket.recv()
                costs.append((cpu_ns(pid) - start) / (count // ROUNDS // together * together) / 1e6)
            return sorted(costs)[ROUNDS // 2]

        return {
            "echo": await cost_ms("echo", None, 1_500, 1),
            "append": await cost_ms("append", None, 400, 1),
            "append, 16 at a time": await cost_ms("append", None, 1_600, 16),
            "list of 50": await cost_ms("list", 50, 300, 1),
            "list of 200": await cost_ms("list", 200, 150, 1),
            "turn": await cost_ms("turn", None, 150, 1),
            "turn, 16 at a time": await cost_ms("turn", None, 480, 16),
        }
