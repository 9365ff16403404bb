"""The access policy with many grants: one verdict of `policy.may`, beside one without any grant."""

from __future__ import annotations

import time
from typing import Any

from bench import Figure
from hobnob.config import Settings
from hobnob.keys import parse
from hobnob.policy import may
from hobnob.types import Session

GRANTS = 1_000
CALLS, ROUNDS = 1_000, 15  # the fastest round counts: other processes only add to it
LIMIT_US = 20.0


def run() -> list[Figure]:
    boss, worker = Session.of(parse("agent:boss:main")), Session.of(parse("agent:worker:cron:999"))
    cases: dict[str, tuple[list[dict[str, Any]], bool]] = {
        "between many agents": (_between_many_agents(), True),
        "for single sessions of one agent": (_for_single_sessions(), True),
        "for beginnings of keys": (_for_prefixes(), True),
        "of which none fits": (_between_many_agents()[:-1], False),
    }
    floors = {
        True: _fastest_us(_settings([], visible=True), boss, worker, allowed=True),
        False: _fastest_us(_settings([]), boss, worker, allowed=False),
    }
    figures = []
    for name, (grants, allowed) in cases.items():
        value = _fastest_us(_settings(grants), boss, worker, allowed=allowed)
        floor = floors[allowed]
        figures.append(
            Figure(
                f"may with {GRANTS:,} grants {name}",
                f"{value:.1f} µs",
                f"{floor:.1f} µs, {'allowed' if allowed else 'refused'} without grants",
                value / floor,
                f"< {LIMIT_US:g} µs",
                value < LIMIT_US,
            )
        )
    return figures


def _settings(grants: list[dict[str, Any]], *, visible: bool = False) -> Settings:
    tools = {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}} if visible else {}
    agents = {"list": [{"id": "boss"}, {"id": "worker"}]}
    return Settings.model_validate({"agents": agents, "tools": tools, "grants": grants})


def _between_many_agents() -> list[dict[str, Any]]:
    others = [{"from": "boss", "to": f"agent{n}", "verbs": ["history"]} for n in range(GRANTS - 1)]
    return [*others, {"from": "boss", "to": "worker", "verbs": ["history"]}]


def _for_single_sessions() -> list[dict[str, Any]]:
    return [
        {"from": "boss", "to": "worker", "verbs": ["history"], "sessions": [f"cron:{n}"]}
        for n in range(GRANTS)
    ]


def _for_prefixes() -> list[dict[str, Any]]:
    others = [
        {"from": "boss", "to": "worker", "verbs": ["history"], "sessions": [f"hook:{'x' * (n % 40)}{n}*"]}
        for n in range(GRANTS - 1)
    ]
    return [*others, {"from": "boss", "to": "worker", "verbs": ["history"], "sessions": ["cron:9*"]}]


def _fastest_us(settings: Settings, caller: Session, target: Session, *, allowed: bool) -> float:
    assert may(settings, caller, "history", target).allowed == allowed
    rounds = []
    for _ in range(ROUNDS):
        began = time.thread_time_ns()  # CPU time: it changes less when other processes use the machine
        for _ in range(CALLS):
            may(settings, caller, "history", target)
        rounds.append((time.thread_time_ns() - began) / CALLS / 1_000)
    return min(rounds)
