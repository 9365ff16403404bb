"""Budgets: what the reservation of a model call costs, beside turns without a budget in the same run."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Any

import uvloop

from bench import Figure
from bench._gateways import TOKEN, cpu_s, gateway
from bench._model_server import model_server
from hobnob.client import Client, open_client
from hobnob.types import new_id

SESSIONS, TURNS, ROUNDS = 16, 10, 7
LARGE = {"tokens": 10**12, "usd": 10**6, "turns": 10**6}


def run() -> list[Figure]:
    plain, metered = uvloop.run(_turns())
    above = metered / plain - 1
    return [
        Figure(
            "CPU time of a turn with a budget",
            f"{metered * 1e3:.2f} ms",
            f"{plain * 1e3:.2f} ms, without one",
            metered / plain,
            "< 10 % above",
            above < 0.10,
        )
    ]


async def _turns() -> tuple[float, float]:
    """CPU seconds of the gateway per turn, without and with a budget: medians of rounds in turn."""
    with model_server() as model, tempfile.TemporaryDirectory() as folder:
        with gateway(Path(folder), _settings(model)) as (url, pid):
            async with open_client(url, TOKEN) as client:
                found: dict[str, list[float]] = {"free": [], "bound": []}
                for _ in range(ROUNDS):
                    for agent, times in found.items():
                        before = cpu_s(pid)
                        await asyncio.gather(*(_session(client, agent, n) for n in range(SESSIONS)))
                        times.append((cpu_s(pid) - before) / (SESSIONS * TURNS))
                return statistics.median(found["free"][1:]), statistics.median(found["bound"][1:])


async def _session(client: Client, agent: str, number: int) -> None:
    for _ in range(TURNS):
        key = f"agent:{agent}:hook:{number}"
        answer = await client.call("agent", message="hello", sessionKey=key, idempotencyKey=new_id())
        assert answer["status"] == "ok", answer


def _settings(model: str) -> dict[str, Any]:
    agents = [{"id": "free", "default": True}, {"id": "bound", "budget": LARGE}]
    provider = {"baseUrl": f"{model}/short", "models": [{"id": "m"}], "maxConcurrent": 64}
    return {
        "agents": {"defaults": {"model": "own/m"}, "list": agents},
        "models": {"providers": {"own": provider}},
    }
