"""Budgets of agents, sessions, trees and exchanges, through a real gateway."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.channels.line import Line
from tests.integration.helpers import call_method, use
from tests.waiting import LIMIT_S

from hobnob.gateway import Gateway
from hobnob.store.costs import budgets, usage
from hobnob.store.costs.usage import today
from hobnob.testing import calls, exchange_ended, rehearse, say, script

MAIN = "agent:main:main"
PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from hobnob.testing import rehearse, say

async def main():
    async with rehearse(Path(sys.argv[1]), json.loads(sys.argv[2])) as gateway:
        await say(gateway, "what is 6 * 7?")

asyncio.run(main())
"""


async def payload(gateway: Gateway, method: str, **params: Any) -> dict[str, Any]:
    answer = await call_method(gateway, method, **params)
    assert answer["ok"], answer
    found: dict[str, Any] = answer["payload"]
    return found


def of_agents(**budget: float) -> dict[str, Any]:
    return {"agents": {"list": [{"id": "main", "budget": budget}]}}


@pytest.mark.promise("budget.agent_per_day")
async def test_an_agent_spends_no_more_than_its_budget_of_the_day(tmp_path: Path) -> None:
    async with rehearse(tmp_path, of_agents(turns=2)) as gateway:
        assert [(await say(gateway, "what is 1 + 1?")).outcome for _ in range(2)] == ["ok", "ok"]
        refused = await say(gateway, "what is 1 + 1?")
        assert refused.outcome == "failed"
        assert "The budget of the agent main has not enough left: 2 turns a day, 2 turns spent" in str(
            refused.error
        )
        assert "hobnob config set 'agents.list[main].budget.turns' 3" in str(refused.error)


async def test_a_budget_that_is_raised_by_a_reload_holds_at_once(tmp_path: Path) -> None:
    async with rehearse(tmp_path, of_agents(turns=0)) as gateway:
        assert (await say(gateway, "hello")).outcome == "failed"
        (tmp_path / "hobnob.json5").write_text('{agents: {list: [{id: "main", budget: {turns: 9}}]}}')
        await payload(gateway, "config.reload")
        assert (await say(gateway, "hello")).outcome == "ok"


@pytest.mark.promise("budget.session")
async def test_the_budget_of_a_session_is_set_and_removed_by_patch(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        await say(gateway, "hello")
        await payload(gateway, "sessions.patch", key="main", budget={"tokens": 1_000})
        refused = await say(gateway, "hello")
        assert "The budget of the session agent:main:main has not enough left" in str(refused.error)
        await payload(gateway, "sessions.patch", key="main", budget=None)
        assert (await say(gateway, "hello")).outcome == "ok"


@pytest.mark.promise("budget.tree")
async def test_a_child_spends_from_its_own_budget_and_from_those_above_it(tmp_path: Path) -> None:
    spawn = calls("sessions_spawn", task="what is 6 * 7?", budget={"tokens": 50_000})
    async with rehearse(tmp_path, script(spawn, "Started.")) as gateway:
        await payload(gateway, "sessions.create", key="main")
        await payload(gateway, "sessions.patch", key="main", budget={"tokens": 100_000})
        await say(gateway, "go")
        (started,) = (await payload(gateway, "sessions.list", spawnedBy=MAIN))["sessions"]
        listed = await payload(gateway, "exchanges.list")
        await exchange_ended(gateway, listed["exchanges"][0]["id"])
        found = {
            b["owner"]: b["measures"]["tokens"] for b in (await payload(gateway, "budgets.list"))["budgets"]
        }
        child, root = found[started["key"]], found[MAIN]
        assert 0 < child["spent"] < root["spent"]
        assert (child["reserved"], root["reserved"]) == (0, 0)


async def test_a_child_whose_budget_is_used_up_reports_that(tmp_path: Path) -> None:
    spawn = calls("sessions_spawn", task="what is 6 * 7?", budget={"turns": 0})
    async with rehearse(tmp_path, script(spawn, "Started.")) as gateway:
        await say(gateway, "go")
        listed = await payload(gateway, "exchanges.list")
        ended = await exchange_ended(gateway, listed["exchanges"][0]["id"])
        assert "The budget of the session agent:main:subagent:" in str(ended)


@pytest.mark.promise("budget.exchange")
async def test_a_message_to_another_agent_can_have_a_budget(tmp_path: Path) -> None:
    agents = {"agents": {"list": [{"id": "main"}, {"id": "bob"}]}}
    allowed = {
        "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True, "allow": ["*"]}}
    }
    async with rehearse(tmp_path, agents | allowed) as gateway:
        answer = await use(
            gateway,
            "sessions_send",
            MAIN,
            agentId="bob",
            message="hello",
            budget={"turns": 0},
            timeoutSeconds=LIMIT_S,
        )
        assert (answer["status"], "The budget of the exchange" in answer["error"]) == ("error", True)


@pytest.mark.promise("budget.warning")
async def test_people_are_warned_once_when_most_of_a_budget_is_spent(tmp_path: Path) -> None:
    line = Line()
    async with rehearse(tmp_path, line.settings() | of_agents(turns=5)) as gateway:
        for number in range(5):
            await line.say("what is 1 + 1?")
            await line.until(lambda n=number: sum("2" in p.text and "⚠️" not in p.text for p in line.sent) > n)
        await line.until(lambda: any("⚠️" in part.text for part in line.sent))
        (warning,) = [part.text for part in line.sent if "⚠️" in part.text]
        assert warning == "⚠️ 80% of the budget of the agent main is spent: 4 turns of 5 turns."
        assert gateway


async def test_costs_of_children_are_added_to_the_session_that_all_began_with(tmp_path: Path) -> None:
    spawn = calls("sessions_spawn", task="what is 6 * 7?")
    async with rehearse(tmp_path, script(spawn, "Started.")) as gateway:
        await say(gateway, "go")
        listed = await payload(gateway, "exchanges.list")
        await exchange_ended(gateway, listed["exchanges"][0]["id"])
        by_tree = (await payload(gateway, "costs", by="tree"))["rows"]
        by_session = (await payload(gateway, "costs", by="session"))["rows"]
        assert [row["name"] for row in by_tree] == [MAIN]
        assert by_tree[0]["calls"] == sum(row["calls"] for row in by_session)
        assert len(by_session) == 2 and by_tree[0]["priceUnknown"]


@pytest.mark.promise("budget.crash")
@pytest.mark.parametrize(
    "point", ["after-reserve", "before-model", "after-model", "after-step", "before-end", "after-end"]
)
async def test_a_crash_neither_leaks_a_reservation_nor_makes_a_call_free(tmp_path: Path, point: str) -> None:
    given = of_agents(tokens=1_000_000, turns=10)
    killed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), json.dumps(given)],
        env=os.environ | {"HOBNOB_CRASH_AT": point},
        check=False,
    )
    assert killed.returncode == (-signal.SIGKILL if point != "after-step" else 0)
    async with rehearse(tmp_path, given) as gateway:
        await say(gateway, "what is 1 + 1?")
        account = await gateway.store.read(budgets.find, "agent", "main", today())
        assert account is not None
        spent = await gateway.store.read(_of_usage)
        assert (account.reserved_tokens, account.spent_turns) == (0, 2)
        assert account.spent_tokens >= spent
        if point in ("before-model", "after-end", "after-step"):
            assert account.spent_tokens == spent
        elif point != "before-end":
            assert account.spent_tokens > spent  # the call that may have been made


def _of_usage(tx: Any) -> int:
    used, _ = usage.spent(tx, today(), today())
    return used.input_tokens + used.output_tokens if used else 0
