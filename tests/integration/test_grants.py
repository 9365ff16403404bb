"""Grants between agents, through the session tools, `explain`, and a reload that withdraws one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import (
    ANN,
    BOB,
    EVE,
    Gate,
    append_messages,
    call_method,
    create_sessions,
    keys_in,
    texts,
    use,
)
from tests.waiting import LIMIT_S

from hobnob.config import Config, Settings
from hobnob.gateway import Gateway
from hobnob.store import turns
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say

BOB_CRON = "agent:bob:cron:7"


def granting(*grants: dict[str, Any], scripts: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Three agents under the default visibility, and these grants."""
    return {
        "agents": {"list": [{"id": "ann", "default": True}, {"id": "bob"}, {"id": "eve"}]},
        "grants": list(grants),
        "models": {"rehearsal": {"scripts": scripts or {}}},
    } | more


def grant(*verbs: str, **more: Any) -> dict[str, Any]:
    return {"from": "ann", "to": "bob", "verbs": list(verbs)} | more


def reload(gateway: Gateway, settings: dict[str, Any]) -> None:
    gateway.config.reload(Config(Settings.model_validate(settings), gateway.config.home))


@pytest.mark.promise("grants.everywhere")
async def test_a_list_has_the_sessions_a_grant_opens_and_no_others(tmp_path: Path) -> None:
    async with rehearse(tmp_path, granting(grant("list"))) as gateway:
        await create_sessions(gateway, EVE, BOB, BOB_CRON, ANN)
        answer = await use(gateway, "sessions_list")
        assert keys_in(answer) == ["main", BOB_CRON, BOB]
        assert answer["visibility"] == {"mode": "tree", "restricted": True, "granted": ["bob"]}


@pytest.mark.promise("grants.everywhere", "grants.sessions")
async def test_a_list_has_only_the_keys_that_a_grant_names(tmp_path: Path) -> None:
    async with rehearse(tmp_path, granting(grant("list", sessions=["cron:7"]))) as gateway:
        await create_sessions(gateway, BOB, BOB_CRON, ANN)
        assert keys_in(await use(gateway, "sessions_list")) == ["main", BOB_CRON]


@pytest.mark.promise("grants.everywhere")
async def test_pages_of_granted_sessions_are_complete_and_without_repeats(tmp_path: Path) -> None:
    async with rehearse(
        tmp_path, granting(grant("list"), grant("list", to="eve", sessions=["main"]))
    ) as gateway:
        expected = [f"agent:bob:cron:{number}" for number in range(5)] + [EVE]
        await create_sessions(gateway, *expected, ANN)
        found: list[str] = []
        cursor: dict[str, Any] = {}
        while True:
            page = await use(gateway, "sessions_list", limit=2, **cursor)
            found += keys_in(page)
            if not page["hasMore"]:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert sorted(found) == sorted(["main", *expected])


@pytest.mark.promise("grants.everywhere", "grants.by_verb")
async def test_a_list_shows_no_messages_of_a_session_that_may_only_be_listed(tmp_path: Path) -> None:
    async with rehearse(tmp_path, granting(grant("list"))) as gateway:
        bob, _ = await create_sessions(gateway, BOB, ANN)
        await append_messages(gateway, bob, "the secret plan")
        rows = {row["key"]: row for row in (await use(gateway, "sessions_list", messageLimit=5))["sessions"]}
        assert rows[BOB]["messages"] == []
        assert rows["main"]["messages"] != []
        refused = await use(gateway, "sessions_history", sessionKey=BOB)
        assert (refused["status"], refused["code"]) == ("forbidden", "visibility.tree")


@pytest.mark.promise("grants.everywhere")
async def test_search_finds_what_a_grant_lets_it_read(tmp_path: Path) -> None:
    async with rehearse(tmp_path, granting(grant("history"))) as gateway:
        bob, eve, _ = await create_sessions(gateway, BOB, EVE, ANN)
        await append_messages(gateway, bob, "a purple kite")
        await append_messages(gateway, eve, "a purple boat")
        found = await use(gateway, "sessions_search", query="purple")
        assert BOB in {row["sessionKey"] for row in found["results"]}
        assert EVE not in {row["sessionKey"] for row in found["results"]}


@pytest.mark.promise("grants.everywhere")
async def test_a_grant_to_send_is_enough_for_a_whole_exchange(tmp_path: Path) -> None:
    scripts = {BOB: ["Forty-two.", "REPLY_SKIP", "ANNOUNCE_SKIP"]}
    async with rehearse(tmp_path, granting(grant("send"), scripts=scripts)) as gateway:
        answer = await use(gateway, "sessions_send", agentId="bob", message="say it")
        assert (answer["status"], answer["reply"]) == ("ok", "Forty-two.")
        assert (await exchange_ended(gateway, answer["exchangeId"], LIMIT_S))["state"] == "done"


@pytest.mark.promise("grants.one_way")
async def test_the_other_agent_gets_nothing_by_a_grant(tmp_path: Path) -> None:
    async with rehearse(tmp_path, granting(grant("send"))) as gateway:
        refused = await use(gateway, "sessions_send", BOB, agentId="ann", message="hi")
        assert (refused["status"], refused["code"]) == ("forbidden", "visibility.tree")


@pytest.mark.promise("grants.by_verb")
async def test_a_grant_to_control_cancels_the_turn_of_another_agent(tmp_path: Path) -> None:
    gate = Gate()
    scripts = {BOB: [calls("hold"), "done"]}
    async with rehearse(tmp_path, granting(grant("control"), scripts=scripts), tools=[gate.tool]) as gateway:
        working = await gateway.sessions.send(OWNER, BOB, "work")
        await gate.reached.wait()
        answer = await use(gateway, "subagents", action="cancel", target=BOB)
        assert answer["runIds"] == [working.turn_id]
        assert (await gateway.sessions.wait(working.turn_id, LIMIT_S)).outcome == "cancelled"
        refused = await use(gateway, "subagents", action="cancel", target=EVE)
        assert refused["status"] in ("forbidden", "error")


@pytest.mark.promise("grants.spawn")
async def test_a_grant_to_spawn_is_offered_and_taken(tmp_path: Path) -> None:
    async with rehearse(tmp_path, granting(grant("spawn"))) as gateway:
        assert [agent["id"] for agent in (await use(gateway, "agents_list"))["agents"]] == ["ann", "bob"]
        assert (await use(gateway, "sessions_spawn", agentId="bob", task="say: hi"))["status"] == "accepted"
        assert (await use(gateway, "sessions_spawn", agentId="eve", task="hi"))["code"] == (
            "spawn.agent_not_allowed"
        )


@pytest.mark.promise("grants.explained")
async def test_explain_names_the_grant(tmp_path: Path) -> None:
    settings = granting(grant("history"), grant("send", sessions=["main"]))
    async with rehearse(tmp_path, settings) as gateway:
        await create_sessions(gateway, ANN, BOB)
        found = await call_method(gateway, "policy.explain", action="send", target=BOB, source=ANN)
        found = found["payload"]
        assert (found["allowed"], found["code"]) == (True, "grant")
        assert found["rules"][0]["why"] == "The grant grants[1] (from ann to bob: send; only main) allows it."


@pytest.mark.promise("grants.explained")
async def test_explain_proposes_the_narrowest_grant_for_a_refusal(tmp_path: Path) -> None:
    async with rehearse(tmp_path, granting()) as gateway:
        await create_sessions(gateway, ANN, BOB)
        found = await call_method(gateway, "policy.explain", action="history", target=BOB, source=ANN)
        found = found["payload"]
        assert found["grant"] == {"from": "ann", "to": "bob", "verbs": ["history"]}


@pytest.mark.promise("grants.withdrawn")
@pytest.mark.parametrize("running", [True, False])
async def test_a_sender_that_waits_is_told_when_its_grant_is_withdrawn(tmp_path: Path, running: bool) -> None:
    gate = Gate()
    scripts = {BOB: [calls("hold"), "done", "late"]}
    async with rehearse(tmp_path, granting(grant("send"), scripts=scripts), tools=[gate.tool]) as gateway:
        if not running:  # then bob is busy, and ann's message waits in his queue
            await gateway.sessions.send(OWNER, BOB, "work")
            await gate.reached.wait()
        asking = asyncio.create_task(
            use(gateway, "sessions_send", agentId="bob", message="help", timeoutSeconds=600)
        )
        if running:
            await gate.reached.wait()
        else:
            while not [t for t in await gateway.store.read(turns.open_of, BOB) if t.step == "primary"]:
                await asyncio.sleep(0)
        reload(gateway, granting())
        async with asyncio.timeout(LIMIT_S):
            answer = await asking
        assert (answer["status"], answer["code"]) == ("forbidden", "visibility.tree")
        assert "tools.sessions.visibility" in answer["fix"]
        gate.open.set()


@pytest.mark.promise("grants.withdrawn")
async def test_a_message_that_waited_over_a_restart_without_the_grant_starts_no_model(tmp_path: Path) -> None:
    gate = Gate()
    scripts = {BOB: [calls("hold")]}
    async with rehearse(tmp_path, granting(grant("send"), scripts=scripts), tools=[gate.tool]) as gateway:
        await gateway.sessions.send(OWNER, BOB, "work")
        await gate.reached.wait()
        sent = await use(gateway, "sessions_send", agentId="bob", message="help", timeoutSeconds=0)
        assert sent["status"] == "accepted"
    async with rehearse(tmp_path, granting(), tools=[gate.tool]) as gateway:
        gate.open.set()
        turn = await gateway.sessions.wait(sent["runId"], LIMIT_S)
        assert turn.outcome == "cancelled"
        assert turn.error is not None
        assert turn.error.startswith("The right to send there was withdrawn. ")


@pytest.mark.promise("grants.withdrawn")
async def test_a_reply_loop_ends_when_the_grant_is_withdrawn(tmp_path: Path) -> None:
    gate = Gate()
    scripts = {
        ANN: [calls("sessions_send", agentId="bob", message="hello"), "asked", calls("hold"), "more?"],
        BOB: ["yes", "never said", "ANNOUNCE_SKIP"],
    }
    async with rehearse(tmp_path, granting(grant("send"), scripts=scripts), tools=[gate.tool]) as gateway:
        await say(gateway, "go", ANN)
        await gate.reached.wait()  # in ann's reply turn
        reload(gateway, granting())
        found = (await call_method(gateway, "exchanges.list"))["payload"]["exchanges"][0]
        ended = await exchange_ended(gateway, found["id"], LIMIT_S)
        assert (ended["state"], ended["end"]) == ("failed", "cancelled")
        assert "never said" not in await texts(gateway, BOB, "assistant")
        gate.open.set()
