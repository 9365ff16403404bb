"""The session tools for external harnesses: an MCP server that acts as the session of the harness."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.harnesses import harness_log, harness_settings, reports
from tests.integration.helpers import ANN, BOB, spawn_and_wait, texts, transcript, use

from hobnob.api.server import open_server
from hobnob.gateway import Gateway, api_services
from hobnob.store.access import mcp_grants
from hobnob.testing import rehearse

TOOLS = {"sessionTools": True}


@asynccontextmanager
async def listening(
    home: Path, *arguments: str, more: Any = None, settings: Any = None, **acp: Any
) -> AsyncIterator[Gateway]:
    """A gateway with the stub harness that listens on a port."""
    whole = harness_settings(home, *arguments, more=TOOLS | (more or {}), **acp)
    whole |= {"gateway": {"port": 0}} | (settings or {})
    async with rehearse(home, whole) as gateway, open_server(api_services(gateway)):
        yield gateway


async def ask(gateway: Gateway, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What the harness gets when it calls these tools."""
    ended = await spawn_and_wait(gateway, task=f"tools {json.dumps(calls)}", runtime="acp")
    assert ended["outcome"] == "ok", await reports(gateway)
    said = (await texts(gateway, ended["target"], "assistant"))[-1]
    found: list[dict[str, Any]] = json.loads(said)
    return found


@pytest.mark.promise("acp.session_tools")
@pytest.mark.parametrize(("flag", "kind"), [("--http", "HttpMcpServer"), ("--plain", "McpServerStdio")])
async def test_a_harness_asks_another_agent_as_its_own_session(tmp_path: Path, flag: str, kind: str) -> None:
    async with listening(tmp_path, flag) as gateway:
        listed, sent = await ask(
            gateway,
            ("sessions_list", {}),
            ("sessions_send", {"agentId": "bob", "message": "what is 6 * 7?", "timeoutSeconds": 45}),
        )
        assert {ANN} < {row["key"] for row in listed["sessions"]}
        assert (sent["status"], sent["reply"]) == ("ok", "6 * 7 = 42")
        source = next(m for m in await _inputs(gateway, BOB) if "provenance" in m)["provenance"]
        assert source["sourceSessionKey"].startswith("agent:stub:acp:")
    assert harness_log(tmp_path, "server") == [f"hobnob {kind}"]


async def _inputs(gateway: Gateway, key: str) -> list[dict[str, Any]]:
    return [m for m in await transcript(gateway, key) if m["role"] == "user"]


@pytest.mark.promise("acp.session_tools")
async def test_a_harness_sees_its_tree_only_unless_settings_say_more(tmp_path: Path) -> None:
    settings = {"tools": {}}
    async with listening(tmp_path, "--http", settings=settings) as gateway:
        await use(gateway, "sessions_list")
        listed, refused = await ask(gateway, ("sessions_list", {}), ("sessions_history", {"sessionKey": ANN}))
        assert [row["key"].startswith("agent:stub:acp:") for row in listed["sessions"]] == [True]
        assert (refused["status"], refused["code"]) == ("forbidden", "visibility.tree")


@pytest.mark.promise("acp.session_tools")
async def test_a_harness_spawns_within_the_depth_that_is_set(tmp_path: Path) -> None:
    async with listening(tmp_path, "--http") as gateway:
        [refused] = await ask(gateway, ("sessions_spawn", {"task": "say hi"}))
        assert (refused["status"], refused["code"]) == ("forbidden", "spawn.depth")
    deeper = {"agents": spawning(maxSpawnDepth=2)}
    async with listening(tmp_path, "--http", settings=deeper) as gateway:
        agents, accepted = await ask(
            gateway, ("agents_list", {}), ("sessions_spawn", {"task": "say hi", "agentId": "bob"})
        )
        assert [row["id"] for row in agents["agents"]] == ["ann", "bob"]  # as for the agent that spawned it
        assert accepted["status"] == "accepted"
        assert accepted["childSessionKey"].startswith("agent:bob:subagent:")


def spawning(**subagents: Any) -> dict[str, Any]:
    agents = harness_settings(Path("/nowhere"))["agents"]
    return agents | {"defaults": {"subagents": subagents}}


@pytest.mark.promise("acp.session_tools")
async def test_without_the_setting_a_harness_gets_no_server(tmp_path: Path) -> None:
    async with listening(tmp_path, "--http", more={"sessionTools": False}) as gateway:
        ended = await spawn_and_wait(gateway, task="tools []", runtime="acp")
        assert ended["outcome"] == "failed"


async def test_a_harness_has_no_session_tool_that_its_spawner_lacks(tmp_path: Path) -> None:
    settings = harness_settings(tmp_path)
    settings["agents"]["list"][0]["tools"] = {"deny": ["sessions_history"]}
    async with listening(tmp_path, "--http", settings={"agents": settings["agents"]}) as gateway:
        ended = await spawn_and_wait(
            gateway, task=f"tools {json.dumps([('sessions_history', {'sessionKey': 'main'})])}", runtime="acp"
        )
        assert ended["outcome"] == "failed"


async def test_the_grant_of_a_harness_ends_with_its_turn(tmp_path: Path) -> None:
    async with listening(tmp_path, "--http") as gateway:
        await ask(gateway, ("sessions_list", {}))
        assert await gateway.store.read(mcp_grants.count) == 0


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ({"title": "mcp__hobnob__sessions_send", "kind": "other", "rawInput": {"message": "x"}}, "allow"),
        ({"title": "mcp__hobnob__sessions_list", "kind": "other"}, "allow"),
        ({"title": "mcp__other__sessions_send", "kind": "other"}, "reject"),
        ({"title": "mcp__hobnob__exec", "kind": "other"}, "reject"),
        ({"title": "mcp__hobnob__sessions_list", "kind": "execute"}, "reject"),
        ({"title": "mcp__hobnob__sessions_list", "kind": "other", "rawInput": {"command": "x"}}, "reject"),
    ],
)
async def test_the_session_tools_need_no_permission_and_nothing_else_passes_as_one(
    tmp_path: Path, call: dict[str, Any], answer: str
) -> None:
    async with listening(tmp_path, "--http") as gateway:
        ended = await spawn_and_wait(gateway, task=f"ask {json.dumps([call])}", runtime="acp")
        assert (await texts(gateway, ended["target"], "assistant"))[-1] == answer
