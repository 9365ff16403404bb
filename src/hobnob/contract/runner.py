"""Runs the checks and writes the reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import aiohttp

from hobnob.contract.client import ContractClient, Unsupported

State = Literal["passed", "failed", "skipped"]
CHECK_TIMEOUT_S = 240.0
RESTART_S = 120.0
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


@dataclass(frozen=True, slots=True)
class Gateway:
    """The gateway under test. `restart`: a shell command that kills and starts it again."""

    client: ContractClient
    restart: str | None = None

    async def restarted(self) -> None:
        """Run the restart command and wait until the gateway answers. Raises Unsupported without one."""
        if self.restart is None:
            raise Unsupported("no --restart-command was given")
        process = await asyncio.create_subprocess_shell(self.restart)
        if await process.wait() != 0:
            raise AssertionError(f"the restart command failed: {process.returncode}")
        await self.client.until_up(RESTART_S)


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    section: str
    title: str
    function: Callable[[Gateway], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    section: str
    title: str
    state: State
    detail: str = ""
    seconds: float = 0.0


CHECKS: list[Check] = []


def check(section: str) -> Callable[[Callable[[Gateway], Awaitable[None]]], Callable[..., Any]]:
    """Register a function as a check. Its docstring is the rule, an AssertionError says it is broken."""

    def register(function: Callable[[Gateway], Awaitable[None]]) -> Callable[..., Any]:
        title = (function.__doc__ or "").strip()
        CHECKS.append(Check(function.__name__, section, title, function))
        return function

    return register


def require(condition: object, what: str, found: object = None) -> None:
    """Fail the check unless the condition holds."""
    if not condition:
        shown = f": {str(found)[:600]}" if found is not None else ""
        raise AssertionError(f"{what}{shown}")


async def run(
    url: str,
    token: str,
    *,
    restart: str | None = None,
    only: str | None = None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run the checks against a gateway, one after the other."""
    from hobnob.contract import acting, checks  # noqa: F401 - they register the checks

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
