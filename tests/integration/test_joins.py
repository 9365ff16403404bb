"""Joins: spawns whose results are collected, waits for several of them, and one wake per batch."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import (
    ANN,
    BOB,
    Gate,
    call_method,
    spawning_agents,
    texts,
    use,
    wait_until_idle,
)
from tests.waiting import LIMIT_S, until

from hobnob.gateway import Gateway
from hobnob.requests import WaitQuery
from hobnob.sessions import Cause
from hobnob.store import exchanges, sessions, turns
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say
from hobnob.tools import Context, Tool, tool


class Doors:
    """A tool `pass_door` that stays in its call until the door of its name is opened."""

    def __init__(self, *names: str) -> None:
        self.open = {name: asyncio.Event() for name in names}
        self.reached: set[str] = set()

        @tool(repeatable=True)
        async def pass_door(context: Context, name: str) -> str:
            """Wait at a door."""
            self.reached.add(name)
            await self.open[name].wait()
            return f"through {name}"

        self.tool: Tool = pass_door


def door(name: str) -> str:
    return f'call pass_door {{"name": "{name}"}}'


async def collect(gateway: Gateway, task: str, **more: Any) -> dict[str, Any]:
    answer = await use(gateway, "sessions_spawn", task=task, collect=True, **more)
    assert answer["status"] == "accepted", answer
    return answer


async def method(gateway: Gateway, name: str, **params: Any) -> dict[str, Any]:
    answer = await call_method(gateway, name, **params)
    assert answer["ok"], answer
    payload: dict[str, Any] = answer["payload"]
    return payload


@pytest.mark.promise("join.collect_reports_to_nobody")
async def test_a_collected_child_reports_to_nobody_and_its_result_is_kept(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        child = await collect(gateway, "say: 42")
        ended = await exchange_ended(gateway, child["exchangeId"])
        assert (ended["state"], ended["end"]) == ("done", "collected")
        assert [step["step"] for step in ended["steps"]] == ["primary"]
        await wait_until_idle(gateway, ANN)
        assert not [text for text in await texts(gateway, ANN, "user") if "Status:" in text]
        answer = await use(gateway, "agents_wait", ids=[child["runId"]])
        [row] = answer["completed"]
        assert (answer["status"], answer["pending"]) == ("ok", [])
        assert (row["runId"], row["status"], row["reply"]) == (child["runId"], "ok", "42")
        assert row["outcome"] == "completed" and row["usage"]["outputTokens"] > 0


@pytest.mark.promise("join.all_any_n")
@pytest.mark.parametrize(("mode", "done"), [("any", ["b"]), (2, ["a", "b"]), ("2", ["a", "b"])])
async def test_a_wait_ends_when_as_many_have_ended_as_it_asks_for(
    tmp_path: Path, mode: Any, done: list[str]
) -> None:
    doors = Doors("a", "b", "c")
    async with rehearse(tmp_path, spawning_agents(), tools=[doors.tool]) as gateway:
        runs = {
            name: (await collect(gateway, door(name), groupId="g", label=name))["runId"]
            for name in doors.open
        }
        waiting = asyncio.ensure_future(use(gateway, "agents_wait", groupId="g", mode=mode))
        await until(lambda: doors.reached == {"a", "b", "c"})
        for name in reversed(done):
            doors.open[name].set()
        answer = await asyncio.wait_for(waiting, LIMIT_S)
        assert answer["status"] == "ok"
        assert [row["label"] for row in answer["completed"]] == done
        assert answer["pending"] == [runs[name] for name in doors.open if name not in done]
        for event in doors.open.values():
            event.set()
        whole = await use(gateway, "agents_wait", groupId="g")
        assert [row["label"] for row in whole["completed"]] == ["a", "b", "c"]


@pytest.mark.promise("join.partial_results_at_the_deadline", "join.asking_again_gives_the_same")
async def test_a_deadline_returns_what_is_there_and_the_rest_as_pending(tmp_path: Path) -> None:
    doors = Doors("slow")
    async with rehearse(tmp_path, spawning_agents(), tools=[doors.tool]) as gateway:
        quick, slow = await collect(gateway, "say: 1"), await collect(gateway, door("slow"))
        await exchange_ended(gateway, quick["exchangeId"])
        ids = [slow["runId"], quick["runId"]]
        partial = await use(gateway, "agents_wait", ids=ids, timeoutSeconds=0.05)
        assert (partial["status"], partial["pending"]) == ("timeout", [slow["runId"]])
        again = await use(gateway, "agents_wait", ids=ids, timeoutSeconds=0)
        assert again == partial
        doors.open["slow"].set()
        whole = await use(gateway, "agents_wait", ids=ids)
        assert [row["runId"] for row in whole["completed"]] == ids
        assert whole["completed"][1] == partial["completed"][0]


@pytest.mark.promise("join.failures_are_results")
async def test_a_child_that_fails_or_is_cancelled_counts_as_ended_and_says_why(tmp_path: Path) -> None:
    doors = Doors("never")
    scripts = {BOB: [], "*": [{"error": "no such luck"}]}
    async with rehearse(tmp_path, spawning_agents(scripts), tools=[doors.tool]) as gateway:
        failed = await collect(gateway, "x")
        answer = await use(gateway, "agents_wait", ids=[failed["runId"]])
        [row] = answer["completed"]
        assert (answer["status"], row["status"], row["outcome"]) == ("ok", "error", "failed")
        assert "no such luck" in row["error"]


@pytest.mark.promise("join.the_wait_is_a_row")
async def test_the_wait_is_in_the_store_and_shown_by_the_session(tmp_path: Path) -> None:
    doors = Doors("a")
    async with rehearse(tmp_path, spawning_agents(), tools=[doors.tool]) as gateway:
        child = await collect(gateway, door("a"))
        waiting = asyncio.ensure_future(use(gateway, "agents_wait", ids=[child["runId"]]))
        await until(lambda: doors.reached)
        while not (found := await gateway.store.read(exchanges.awaited_by, ANN)):
            await asyncio.sleep(0)
        assert found == [child["childSessionKey"]]
        doors.open["a"].set()
        assert (await asyncio.wait_for(waiting, LIMIT_S))["status"] == "ok"
        assert await gateway.store.read(exchanges.awaited_by, ANN) == []


@pytest.mark.promise("join.the_wait_is_a_row")
async def test_a_wait_that_would_close_a_circle_is_refused(tmp_path: Path) -> None:
    """Ann waits for her child, and the child asks to wait for a turn of Ann that comes after."""
    gate = Gate()
    settings = spawning_agents({"*": [calls("hold"), "done"]})
    async with rehearse(tmp_path, settings, tools=[gate.tool]) as gateway:
        child = await collect(gateway, "x")
        await gate.reached.wait()
        session = await gateway.store.read(sessions.get, child["childSessionKey"])
        run = await gateway.store.read(turns.get, child["runId"])
        queued = await gateway.sessions.send(OWNER, ANN, f'call agents_wait {{"ids": ["{child["runId"]}"]}}')
        while await gateway.store.read(exchanges.awaited_by, ANN) == []:
            await asyncio.sleep(0)
        with pytest.raises(Exception, match=r"never end: .*subagent.* waits for agent:ann:main waits for"):
            await gateway.sessions.begin_join(Cause(session, run, "c1"), WaitQuery(ids=[queued.turn_id]))
        # One of two is enough, and only one of them waits for the child.
        other = await gateway.sessions.send(OWNER, BOB, "say hi")
        await gateway.sessions.wait(other.turn_id, LIMIT_S)
        both = WaitQuery(ids=[queued.turn_id, other.turn_id], mode="any")
        assert (await gateway.sessions.begin_join(Cause(session, run, "c2"), both)).state == "done"
        gate.open.set()
        await wait_until_idle(gateway, ANN)


@pytest.mark.promise("join.lends_its_slot")
async def test_a_waiting_turn_lends_its_slot_to_its_children(tmp_path: Path) -> None:
    """Both run in the pool of sub-agents, which has one slot, and the one that waits gets it first."""
    doors = Doors("a")
    settings = spawning_agents(subagents={"maxConcurrent": 1, "maxSpawnDepth": 2})
    async with rehearse(tmp_path, settings, tools=[doors.tool]) as gateway:
        outer = await collect(gateway, "say: ready")
        await exchange_ended(gateway, outer["exchangeId"])
        key = outer["childSessionKey"]
        await collect(gateway, door("a"))
        await until(lambda: doors.reached)
        task = 'call agents_wait {"groupId": "inner"}'
        turn = await gateway.sessions.send(OWNER, key, task)
        spawned = {"key": key, "task": "say: deep", "collect": True, "groupId": "inner"}
        inner = await method(gateway, "sessions.spawn", **spawned)
        doors.open["a"].set()
        ended = await gateway.sessions.wait(turn.turn_id, LIMIT_S)
        assert (ended.outcome, ended.reply) == ("ok", "agents_wait: ok")
        assert (await gateway.store.read(turns.get, inner["runId"])).reply == "deep"


@pytest.mark.promise("join.group_limits")
async def test_a_group_has_a_limit_of_working_children_and_one_of_all(tmp_path: Path) -> None:
    doors = Doors("a")
    settings = spawning_agents()
    settings["tools"]["swarm"] = {"maxChildrenPerGroup": 2, "maxTotalPerGroup": 3}
    async with rehearse(tmp_path, settings, tools=[doors.tool]) as gateway:
        for _ in range(2):
            last = await collect(gateway, door("a"), groupId="g")
        refused = await use(gateway, "sessions_spawn", task="x", collect=True, groupId="g")
        assert (refused["code"], "tools.swarm.maxChildrenPerGroup 3" in refused["fix"]) == (
            "spawn.group",
            True,
        )
        await collect(gateway, door("a"), groupId="other")
        doors.open["a"].set()
        await use(gateway, "agents_wait", groupId="g")
        assert last["groupId"] == "g"
        await collect(gateway, "say: 3", groupId="g")
        refused = await use(gateway, "sessions_spawn", task="x", collect=True, groupId="g")
        assert refused["code"] == "spawn.group_total"


@pytest.mark.promise("join.group_limits")
async def test_collected_children_do_not_count_against_the_limit_of_the_session(tmp_path: Path) -> None:
    doors = Doors("a")
    settings = spawning_agents(subagents={"maxChildrenPerAgent": 1})
    async with rehearse(tmp_path, settings, tools=[doors.tool]) as gateway:
        for _ in range(3):
            await collect(gateway, door("a"), groupId="g")
        assert (await use(gateway, "sessions_spawn", task=door("a")))["status"] == "accepted"
        assert (await use(gateway, "sessions_spawn", task="x"))["code"] == "spawn.children"
        doors.open["a"].set()
        assert (await use(gateway, "agents_wait", groupId="g"))["pending"] == []


@pytest.mark.promise("join.one_wake_per_batch")
async def test_whoever_yields_for_a_batch_is_woken_once_with_all_results(tmp_path: Path) -> None:
    doors = Doors("a", "b", "c")
    scripts = {
        ANN: [
            calls("sessions_spawn", task=door("a"), collect=True, label="one"),
            calls("sessions_spawn", task=door("b"), collect=True, label="two"),
            calls("sessions_spawn", task=door("c"), label="three"),
            calls("sessions_yield"),
            "All there.",
            "Woken twice.",
        ]
    }
    async with rehearse(tmp_path, spawning_agents(scripts), tools=[doors.tool]) as gateway:
        await say(gateway, "go", ANN)
        found = (await gateway.sessions.queries.exchanges(OWNER))["exchanges"]
        for name in ("c", "a", "b"):
            assert "All there." not in await texts(gateway, ANN, "assistant")
            doors.open[name].set()
            await until(lambda name=name: name in doors.reached)
        for each in found:
            await exchange_ended(gateway, each["id"])
        await wait_until_idle(gateway, ANN)
        assert (await texts(gateway, ANN, "assistant"))[-1] == "All there."
        told = "\n".join((await texts(gateway, ANN, "user"))[1:])
        assert told.count("Status: completed") == 1
        assert "3 of 3 sub-agents" in told and '"one"' in told and '"two"' in told
        assert "through a" in told and "through b" in told


@pytest.mark.promise("join.one_wake_per_batch")
async def test_whoever_yields_for_any_is_woken_by_the_first(tmp_path: Path) -> None:
    doors = Doors("a", "b")
    scripts = {
        ANN: [
            calls("sessions_spawn", task=door("a"), collect=True),
            calls("sessions_spawn", task=door("b"), collect=True),
            calls("sessions_yield", waitFor="any"),
            "One is there.",
            "Woken twice.",
        ]
    }
    async with rehearse(tmp_path, spawning_agents(scripts), tools=[doors.tool]) as gateway:
        await say(gateway, "go", ANN)
        doors.open["b"].set()
        found = (await gateway.sessions.queries.exchanges(OWNER))["exchanges"]
        while "One is there." not in await texts(gateway, ANN, "assistant"):
            await asyncio.sleep(0.01)
        doors.open["a"].set()
        for each in found:
            await exchange_ended(gateway, each["id"])
        await wait_until_idle(gateway, ANN)
        assert (await texts(gateway, ANN, "assistant"))[-1] == "One is there."


@pytest.mark.promise("join.one_wake_per_batch")
async def test_a_child_that_stays_silent_also_ends_the_batch(tmp_path: Path) -> None:
    scripts = {
        ANN: [calls("sessions_spawn", task="x"), calls("sessions_yield"), "Woken."],
        "*": [calls("hold"), "done", "ANNOUNCE_SKIP"],
    }
    gate = Gate()
    async with rehearse(tmp_path, spawning_agents(scripts), tools=[gate.tool]) as gateway:
        await say(gateway, "go", ANN)
        gate.open.set()
        [found] = (await gateway.sessions.queries.exchanges(OWNER))["exchanges"]
        await exchange_ended(gateway, found["id"])
        await wait_until_idle(gateway, ANN)
        assert (await texts(gateway, ANN, "assistant"))[-1] == "Woken."


async def test_yielding_for_runs_that_are_done_is_refused(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        child = await collect(gateway, "say: 1")
        await exchange_ended(gateway, child["exchangeId"])
        answer = await use(gateway, "sessions_yield", waitFor=[child["runId"]])
        assert answer["status"] == "error"


@pytest.mark.promise("join.only_own_runs")
async def test_a_run_of_another_session_that_is_not_visible_looks_like_none(tmp_path: Path) -> None:
    settings = spawning_agents()
    settings["tools"] = {"sessions": {"visibility": "self"}}
    async with rehearse(tmp_path, settings) as gateway:
        other = await say(gateway, "say hi", BOB)
        refused = await use(gateway, "agents_wait", ids=[other.turn_id])
        unknown = await use(gateway, "agents_wait", ids=["no-such-run"])
        assert (refused["status"], refused["code"]) == (unknown["status"], unknown["code"])
        own = await collect(gateway, "say: 1")
        assert (await use(gateway, "agents_wait", ids=[own["runId"]]))["status"] == "ok"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "ids or groupId"),
        ({"ids": ["a"], "groupId": "b"}, "ids or groupId"),
        ({"ids": []}, "ids"),
        ({"groupId": "nobody"}, "nobody"),
        ({"ids": ["x"], "mode": "most"}, "mode"),
    ],
)
async def test_a_wait_for_nothing_is_refused(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        answer = await use(gateway, "agents_wait", **given)
        assert answer["status"] == "error" and words in answer["error"]


async def test_a_group_needs_collect(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        answer = await use(gateway, "sessions_spawn", task="x", groupId="g")
        assert answer["status"] == "error" and "collect" in answer["error"]


async def test_more_runs_than_there_are_cannot_be_waited_for(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        child = await collect(gateway, "say: 1")
        answer = await use(gateway, "agents_wait", ids=[child["runId"]], mode=2)
        assert answer["status"] == "error" and "1" in answer["error"]


async def test_long_results_share_the_room_of_one_answer(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents({"*": ["x" * 30_000]})) as gateway:
        for _ in range(5):
            await collect(gateway, "x", groupId="g")
        answer = await use(gateway, "agents_wait", groupId="g")
        assert all(row["truncated"] and row["replyChars"] == 30_000 for row in answer["completed"])
        assert sum(len(row["reply"]) for row in answer["completed"]) <= 80_000


@pytest.mark.promise("join.the_same_verbs_for_scripts")
async def test_a_client_waits_for_a_group_without_a_turn(tmp_path: Path) -> None:
    doors = Doors("a")
    async with rehearse(tmp_path, spawning_agents(), tools=[doors.tool]) as gateway:
        await say(gateway, "hi", ANN)
        spawned = [
            await method(gateway, "sessions.spawn", key=ANN, task=task, collect=True, groupId="g")
            for task in ("say: 1", door("a"))
        ]
        wait = {"key": ANN, "groupId": "g"}
        first = await method(gateway, "sessions.wait", **wait, mode="any")
        assert [row["reply"] for row in first["completed"]] == ["1"]
        assert first["pending"] == [spawned[1]["runId"]]
        partial = await method(gateway, "sessions.wait", **wait, timeoutSeconds=0)
        assert partial == first | {"status": "timeout"}
        doors.open["a"].set()
        whole = await method(gateway, "sessions.wait", ids=[s["runId"] for s in spawned])
        assert (whole["status"], whole["pending"], len(whole["completed"])) == ("ok", [], 2)
        refused = await call_method(gateway, "sessions.wait", **wait, mode=3)
        assert "a number from 1 to 2" in refused["error"]["message"]
