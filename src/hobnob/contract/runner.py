"""Runs the checks and writes the reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal

import aiohttp

from hobnob.contract import acting, checks  # for the checks they register
from hobnob.contract.client import ContractClient, Unsupported
from hobnob.contract.registry import CHECKS, Check, Gateway
from hobnob.records import Struct, asdict

__all__ = ["SETTINGS", "Outcome", "acting", "as_json", "as_markdown", "checks", "run"]

State = Literal["passed", "failed", "skipped"]
CHECK_TIMEOUT_S = 240.0
# What the gateway under test needs: four agents with different rights, and the two tools that act.
SETTINGS = """\
{
  agents: {
    list: [
      { id: "main", default: true, subagents: { allowAgents: ["helper"] } },
      { id: "helper" },
      { id: "mute" },
      { id: "outsider" },
    ],
  },
  tools: {
    sessions: { visibility: "all" },
    agentToAgent: { enabled: true, allow: ["main", "helper", "mute"] },
  },
  session: {
    agentToAgent: { maxPingPongTurns: 0 },
    sendPolicy: { rules: [{ match: { keyPrefix: "agent:mute:" }, action: "deny" }], default: "allow" },
  },
  gateway: { tools: { allow: ["sessions_send", "sessions_spawn"] } },
}
"""


class Outcome(Struct, frozen=True):
    name: str
    section: str
    title: str
    state: State
    detail: str = ""
    seconds: float = 0.0


async def run(
    url: str,
    token: str,
    *,
    restart: str | None = None,
    only: str | None = None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run the checks against a gateway, one after the other."""
    outcomes = []
    async with aiohttp.ClientSession() as http:
        gateway = Gateway(ContractClient(http, url, token), restart)
        for each in CHECKS:
            if only is None or only in (each.name, each.section):
                outcomes.append(await _judge(each, gateway))
                on_outcome(outcomes[-1])
    return outcomes


async def _judge(check: Check, gateway: Gateway) -> Outcome:
    began = time.monotonic()
    state: State = "passed"
    detail = ""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await check.function(gateway)
    except Unsupported as missing:
        state, detail = "skipped", str(missing)
    except AssertionError as broken:
        state, detail = "failed", str(broken)
    except TimeoutError:
        state, detail = "failed", f"no result within {CHECK_TIMEOUT_S:.0f} seconds"
    except (aiohttp.ClientError, OSError, KeyError, TypeError, ValueError, IndexError) as error:
        state, detail = "failed", f"{type(error).__name__}: {error}"
    seconds = round(time.monotonic() - began, 3)
    return Outcome(check.name, check.section, check.title, state, detail, seconds)


def as_json(url: str, outcomes: list[Outcome]) -> dict[str, Any]:
    counts = {state: sum(o.state == state for o in outcomes) for state in ("passed", "failed", "skipped")}
    return {"url": url, "ok": counts["failed"] == 0, **counts, "checks": [asdict(o) for o in outcomes]}


def as_markdown(url: str, outcomes: list[Outcome]) -> str:
    report = as_json(url, outcomes)
    lines = [
        "# Contract of the session tools",
        "",
        f"{url}: {report['passed']} passed, {report['failed']} failed, {report['skipped']} skipped.",
    ]
    section = ""
    for outcome in outcomes:
        if outcome.section != section:
            section = outcome.section
            lines += ["", f"## {section}", "", "| | Check | Rule |", "|---|---|---|"]
        mark = {"passed": "✓", "failed": "✗", "skipped": "-"}[outcome.state]
        detail = f" **{_cell(outcome.detail)}**" if outcome.detail else ""
        lines.append(f"| {mark} | `{outcome.name}` | {_cell(outcome.title)}{detail} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
