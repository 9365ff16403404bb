"""What the gateway tells whoever watches: how sessions stand, who talks to whom, why something is refused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import (
    ANN,
    BOB,
    EVE,
    Gate,
    append_messages,
    create_sessions,
    spawn_and_wait,
    spawning_agents,
    three_agents,
)

from hobnob.api.auth import owner_token
from hobnob.api.server import open_server
from hobnob.client import Client, open_client
from hobnob.errors import RpcFailed
from hobnob.gateway import Gateway, api_services
from hobnob.store import exchanges
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say

BOBS = {"name": "bobs", "token": "only-for-bob-token", "scopes": ["operator.read"], "agents": ["bob"]}


@asynccontextmanager
async def watched(
    home: Path, settings: dict[str, Any], *, token: str | None = None, **more: Any
) -> AsyncIterator[tuple[Gateway, Client]]:
    settings = {**settings, "gateway": {"port": 0, "auth": {"tokens": [BOBS]}}}
    async with (
        rehearse(home, settings, **more) as gateway,
        open_server(api_services(gateway)) as url,
        open_client(url, token or owner_token(gateway.config)) as client,
    ):
        yield gateway, client


def asking(target: str, *rest: str) -> list[Any]:
    return [calls("sessions_send", sessionKey=target, message="What?"), *rest]


async def talked(gateway: Gateway) -> dict[str, Any]:
    """Ann has asked bob, and it is over."""
    await say(gateway, "go", ANN)
    page = await gateway.sessions.queries.exchanges(OWNER)
    return await exchange_ended(gateway, page["exchanges"][0]["id"])


async def test_a_list_tells_how_each_session_stands_when_asked_to(tmp_path: Path) -> None:
    gate = Gate()
    scripts = {ANN: asking(BOB, "ok"), BOB: [calls("hold"), "yes"]}
    async with watched(tmp_path, three_agents(scripts), tools=[gate.tool]) as (gateway, client):
        await gateway.sessions.send(OWNER, ANN, "go")
        await gate.reached.wait()
        listed = await client.call("sessions.list", includeStanding=True)
        rows = {row["key"]: row for row in listed["sessions"]}
        assert (rows[ANN]["waitsFor"], rows[ANN]["openTurns"]) == ([BOB], 1)
        assert (rows[BOB]["waitsFor"], rows[BOB]["status"]) == ([], "running")
        assert rows[ANN]["costUsd"] == 0
        assert "waitsFor" not in (await client.call("sessions.list"))["sessions"][0]
        gate.open.set()


async def test_a_list_of_named_sessions_holds_those_that_fit_the_rest_too(tmp_path: Path) -> None:
    async with watched(tmp_path, three_agents()) as (gateway, client):
        await create_sessions(gateway, ANN, BOB, "agent:bob:cron:1", "agent:bob:cron:2")

        async def keys(**narrowed: Any) -> list[str]:
            named = [ANN, "agent:bob:cron:1", "agent:bob:cron:none"]
            page = await client.call("sessions.list", keysOnly=named, **narrowed)
            return [row["key"] for row in page["sessions"]]

        assert await keys() == ["agent:bob:cron:1", ANN]
        assert await keys(kinds=["cron"]) == ["agent:bob:cron:1"]
        assert await keys(agentId="ann") == [ANN]
        assert await keys(archived=True) == []
    async with watched(tmp_path, three_agents(), token=BOBS["token"]) as (_, narrow):
        page = await narrow.call("sessions.list", keysOnly=[ANN, BOB])
        assert [row["key"] for row in page["sessions"]] == [BOB]


async def test_a_page_of_history_can_begin_before_any_message(tmp_path: Path) -> None:
    async with watched(tmp_path, three_agents()) as (gateway, client):
        (session,) = await create_sessions(gateway, ANN)
        await append_messages(gateway, session, *(f"m{n}" for n in range(1, 31)))
        page = await client.call("chat.history", sessionKey=ANN, before=20, limit=5)
        assert [m["seq"] for m in page["messages"]] == [15, 16, 17, 18, 19]
        assert (await client.call("chat.history", sessionKey=ANN, before=1))["messages"] == []
        with pytest.raises(RpcFailed, match="before"):
            await client.call("chat.history", sessionKey=ANN, before=0)


async def test_a_timeline_tells_where_each_step_stands_in_its_transcript(tmp_path: Path) -> None:
    scripts = {ANN: asking(BOB, "ok", "REPLY_SKIP"), BOB: ["yes", "Told."]}
    async with watched(tmp_path, three_agents(scripts)) as (gateway, client):
        await talked(gateway)
        (shown,) = (await client.call("exchanges.timeline"))["exchanges"]
        history = {k: (await client.call("chat.history", sessionKey=k))["messages"] for k in (ANN, BOB)}
        inputs = [history[s["sessionKey"]][s["seq"] - 1] for s in shown["steps"]]
        assert [m["content"] for m in inputs][:2] == ["What?", "yes"]
        assert inputs[2]["provenance"]["step"] == "announce"
        assert [m["provenance"].get("replyTurn") for m in inputs] == [None, 1, None]
        assert history[ANN][shown["asked"]["seq"] - 1]["content"] == "go"
        assert shown["asked"]["endedAt"] >= shown["steps"][0]["endedAt"]
        assert shown["tokens"] == sum(s["usage"]["input"] + s["usage"]["output"] for s in shown["steps"])


async def test_a_timeline_tells_where_a_child_reported(tmp_path: Path) -> None:
    async with watched(tmp_path, spawning_agents({"*": ["done", "all done"]})) as (gateway, client):
        await spawn_and_wait(gateway, task="count", agentId="bob")
        (shown,) = (await client.call("exchanges.timeline"))["exchanges"]
        messages = (await client.call("chat.history", sessionKey=ANN))["messages"]
        assert shown["kind"] == "spawn"
        assert messages[shown["report"]["seq"] - 1]["content"].startswith("Status: completed")


async def test_traffic_counts_messages_and_tokens_between_two_sessions(tmp_path: Path) -> None:
    scripts = {ANN: asking(BOB, "ok", "REPLY_SKIP"), BOB: ["yes", "Told."]}
    async with watched(tmp_path, three_agents(scripts)) as (gateway, client):
        await talked(gateway)
        traffic = await client.call("exchanges.traffic")
        (edge,) = traffic["edges"]
        (shown,) = (await client.call("exchanges.timeline"))["exchanges"]
        assert (edge["from"], edge["to"], edge["kind"], edge["exchanges"]) == (ANN, BOB, "send", 1)
        assert (edge["messages"], edge["tokens"], edge["failed"]) == (4, shown["tokens"], 0)
        assert traffic["maxHops"] == 8
        later = edge["lastAt"] + 1
        assert await gateway.store.read(exchanges.traffic, later) == []


async def test_traffic_names_waits_that_were_refused(tmp_path: Path) -> None:
    async with watched(tmp_path, three_agents({ANN: asking(BOB, "ok"), BOB: asking(ANN, "no")})) as (
        gateway,
        client,
    ):
        await say(gateway, "go", ANN)
        (refusal,) = (await client.call("exchanges.traffic"))["refusals"]
        assert (refusal["sessionKey"], refusal["code"]) == (BOB, "deadlock")
        assert "would never end" in refusal["why"]
        assert "timeoutSeconds 0" in refusal["fix"]


async def test_who_may_read_one_side_only_is_told_of_neither(tmp_path: Path) -> None:
    scripts = {ANN: asking(BOB, "ok"), BOB: asking(ANN, "no"), EVE: []}
    async with watched(tmp_path, three_agents(scripts), token=BOBS["token"]) as (gateway, narrow):
        await say(gateway, "go", ANN)
        traffic = await narrow.call("exchanges.traffic")
        assert traffic["edges"] == []
        assert [refusal["sessionKey"] for refusal in traffic["refusals"]] == [BOB]
        assert (await narrow.call("exchanges.timeline"))["exchanges"] == []


async def test_a_verdict_is_explained_with_its_rules_and_what_would_change_it(tmp_path: Path) -> None:
    settings = three_agents(tools={"sessions": {"visibility": "tree"}})
    async with watched(tmp_path, settings) as (_, client):
        found = await client.call("policy.explain", source=ANN, action="send", target=BOB)
        assert (found["allowed"], found["code"], found["from"], found["to"]) == (
            False,
            "visibility.tree",
            ANN,
            BOB,
        )
        assert [(rule["code"], rule["allowed"]) for rule in found["rules"]] == [
            ("visibility.tree", False),
            ("send_policy.allowed", True),
        ]
        assert {"path": "tools.agentToAgent.enabled", "value": True} in found["fix"]
        own = await client.call("policy.explain", action="control", target=BOB)
        assert (own["allowed"], own["from"]) == (True, "owner")
        spawn = await client.call("policy.explain", source=ANN, action="spawn", target="bob")
        assert (spawn["code"], spawn["to"]) == ("spawn.agent_not_allowed", "bob")


async def test_tokens_and_harnesses_are_explained_to_an_owner(tmp_path: Path) -> None:
    harnesses = {"allowedAgents": ["other"], "harnesses": {"coder": {"command": ["coder"]}}}
    async with watched(tmp_path, three_agents(acp=harnesses)) as (_, client):
        reading = await client.call("policy.explain", source="token:bobs", action="history", target=BOB)
        assert (reading["allowed"], reading["from"]) == (True, "bobs")
        sending = await client.call("policy.explain", source="token:bobs", action="send", target=ANN)
        assert (sending["allowed"], sending["code"]) == (False, "scope.missing")
        with pytest.raises(RpcFailed, match="no token 'ghost'"):
            await client.call("policy.explain", source="token:ghost", action="send", target=ANN)
        spawning = await client.call("policy.explain", source=ANN, action="spawn", target="coder")
        assert (spawning["code"], spawning["to"]) == ("spawn.harness_not_allowed", "coder")


async def test_tokens_are_explained_to_owners_of_all_agents_only(tmp_path: Path) -> None:
    params = {"source": "token:bobs", "action": "history", "target": BOB}
    async with watched(tmp_path, three_agents(), token=BOBS["token"]) as (_, narrow):
        with pytest.raises(RpcFailed, match="Only an owner"):
            await narrow.call("policy.explain", **params)
    reader = {"name": "reader", "token": "reads-everything-token", "scopes": ["operator.read"]}
    settings = three_agents(gateway={"port": 0, "auth": {"tokens": [BOBS, reader]}})
    async with (
        rehearse(tmp_path, settings) as gateway,
        open_server(api_services(gateway)) as url,
        open_client(url, reader["token"]) as client,
    ):
        with pytest.raises(RpcFailed, match="Only an owner"):
            await client.call("policy.explain", **params)


async def test_what_a_credential_may_not_see_is_not_explained_to_it(tmp_path: Path) -> None:
    async with watched(tmp_path, three_agents(), token=BOBS["token"]) as (_, narrow):
        assert (await narrow.call("policy.explain", action="history", target=BOB))["allowed"] is True
        for params in ({"target": ANN}, {"source": ANN, "target": BOB}):
            with pytest.raises(RpcFailed, match="not for sessions of agent 'ann'"):
                await narrow.call("policy.explain", action="history", **params)
