"""The MCP server, with real clients over both transports."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError
from tests.integration.helpers import Gate, create_sessions, texts
from tests.integration.mcp_clients import connected, grant, over_http, use
from tests.integration.web import web_of
from tests.waiting import LIMIT_S

from hobnob.api.mcp import calls as mcp_calls
from hobnob.api.mcp import server as mcp_server
from hobnob.testing import calls

ANN, BOB = "agent:ann:main", "agent:bob:main"
OPEN: dict[str, Any] = {"tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}}}
TOOLS = [
    "agents_list",
    "agents_wait",
    "session_status",
    "sessions_history",
    "sessions_list",
    "sessions_search",
    "sessions_send",
    "sessions_spawn",
    "sessions_yield",
    "subagents",
]
TRANSPORTS = pytest.mark.parametrize("transport", ["http", "stdio"])
MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])


def scripted(**scripts: Any) -> dict[str, Any]:
    return OPEN | {"models": {"rehearsal": {"scripts": scripts}}}


def by_name(tools: Any) -> dict[str, Any]:
    return {each.name: each for each in tools}


@TRANSPORTS
@MODES
@pytest.mark.promise("mcp_server.offers_the_session_tools")
async def test_a_client_lists_the_session_tools_with_our_own_schemas(
    tmp_path: Path, transport: str, mode: str
) -> None:
    async with web_of(tmp_path, OPEN) as web, connected(web, transport, mode=mode) as client:
        found = by_name((await client.list_tools()).tools)
        assert sorted(found) == TOOLS
        session = await web.gateway.sessions.resolve(web.services.auth.by_name("owner").operator, ANN)
        ours = (await web.gateway.toolbox(session)).specs
        for spec in ours:
            if spec.name in found:
                assert found[spec.name].input_schema == spec.parameters
                assert found[spec.name].description == spec.description
        assert found["sessions_list"].annotations.read_only_hint is True
        assert found["sessions_send"].annotations.read_only_hint is False
        assert found["subagents"].annotations.destructive_hint is True
        assert client.instructions is not None and "agents_wait" in client.instructions


@TRANSPORTS
@MODES
@pytest.mark.promise("mcp_server.is_the_session")
async def test_a_client_sends_as_its_session_and_gets_the_answer(
    tmp_path: Path, transport: str, mode: str
) -> None:
    settings = scripted(**{BOB: ["It is 42.", "ANNOUNCE_SKIP"], ANN: ["REPLY_SKIP"]})
    async with web_of(tmp_path, settings) as web, connected(web, transport, mode=mode) as client:
        answer = await use(client, "sessions_send", agentId="bob", message="What is 6 * 7?")
        assert (answer["status"], answer["reply"], answer["isError"]) == ("ok", "It is 42.", False)
        exchange = await web.gateway.sessions.queries.exchange(
            web.services.auth.by_name("owner").operator, answer["exchangeId"]
        )
        assert (exchange["requester"], exchange["target"]) == (ANN, BOB)


@TRANSPORTS
@pytest.mark.promise("policy.decides_mcp", "mcp_server.refusals_unchanged")
async def test_a_refusal_reaches_the_client_with_its_rule_and_its_fix(tmp_path: Path, transport: str) -> None:
    async with web_of(tmp_path) as web, connected(web, transport) as client:
        await create_sessions(web.gateway, BOB)
        answer = await use(client, "sessions_history", sessionKey=BOB)
        assert (answer["status"], answer["code"], answer["isError"]) == ("forbidden", "visibility.tree", True)
        assert "tools.agentToAgent.enabled" in answer["fix"]
        unknown = await use(client, "sessions_history", sessionKey="agent:eve:main")
        assert unknown["error"].replace("eve", "bob") == answer["error"]


@pytest.mark.promise("mcp_server.refusals_unchanged")
async def test_arguments_are_checked_and_clamped_by_our_rules(tmp_path: Path) -> None:
    async with web_of(tmp_path, OPEN) as web, connected(web, "http") as client:
        assert (await use(client, "sessions_list", limit="5000"))["count"] == 1
        wrong = await use(client, "sessions_list", limits=1)
        assert wrong["isError"] and "limit" in wrong["error"]
        missing = await use(client, "sessions_send", agentId="bob")
        assert missing["isError"] and "message" in missing["error"]


async def test_a_tool_that_the_session_lacks_is_an_error_of_the_protocol(tmp_path: Path) -> None:
    settings = OPEN | {"tools": OPEN["tools"] | {"deny": ["sessions_spawn"]}}
    async with web_of(tmp_path, settings) as web, connected(web, "http") as client:
        assert "sessions_spawn" not in by_name((await client.list_tools()).tools)
        for name in ("sessions_spawn", "exec", "nothing"):
            with pytest.raises(MCPError, match=name):
                await client.call_tool(name, {})


@TRANSPORTS
@MODES
@pytest.mark.promise("mcp_server.waits_are_cut")
async def test_a_long_wait_is_cut_and_answered_with_the_run_which_can_be_waited_for(
    tmp_path: Path, transport: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_calls, "MAX_WAIT_S", 0.3)
    gate = Gate()
    settings = scripted(**{BOB: [calls("hold"), "Done at last.", "ANNOUNCE_SKIP"], ANN: ["REPLY_SKIP"]})
    async with (
        web_of(tmp_path, settings, tools=(gate.tool,)) as web,
        connected(web, transport, mode=mode) as client,
    ):
        answer = await use(client, "sessions_send", agentId="bob", message="go", timeoutSeconds=3600)
        assert answer["status"] == "timeout" and answer["runId"]
        again = await use(client, "agents_wait", ids=[answer["runId"]], timeoutSeconds=600)
        assert (again["status"], again["pending"]) == ("timeout", [answer["runId"]])
        monkeypatch.setattr(mcp_calls, "MAX_WAIT_S", 50.0)
        gate.open.set()
        ended = await use(client, "agents_wait", ids=[answer["runId"]], timeoutSeconds=50)
        [row] = ended["completed"]
        assert (row["runId"], row["sessionKey"]) == (answer["runId"], BOB)
        assert (row["status"], row["reply"]) == ("ok", "Done at last.")


@TRANSPORTS
@MODES
@pytest.mark.promise("mcp_server.progress")
async def test_a_client_hears_of_progress_while_it_waits(
    tmp_path: Path, transport: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "PROGRESS_S", 0.02)
    gate, heard = Gate(), []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((total, message))
        if len(heard) == 3:
            gate.open.set()

    settings = scripted(**{BOB: [calls("hold"), "Through.", "ANNOUNCE_SKIP"], ANN: ["REPLY_SKIP"]})
    async with (
        web_of(tmp_path, settings, tools=(gate.tool,)) as web,
        connected(web, transport, mode=mode) as client,
    ):
        arguments = {"agentId": "bob", "message": "go", "timeoutSeconds": 45}
        answer = await client.call_tool("sessions_send", arguments, progress_callback=on_progress)
        assert answer.structured_content["reply"] == "Through."
        assert heard[:3] == [(50.0, "waiting for the answer")] * 3


@TRANSPORTS
@MODES
@pytest.mark.promise("mcp_server.cancel_ends_the_wait")
async def test_cancelling_a_call_ends_the_wait_and_not_the_turn(
    tmp_path: Path, transport: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, cancelled = Gate(), asyncio.Event()
    call = mcp_calls.SessionCalls.call

    async def watched(self: Any, *given: Any) -> Any:
        try:
            return await call(self, *given)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    monkeypatch.setattr(mcp_calls.SessionCalls, "call", watched)
    settings = scripted(**{BOB: [calls("hold"), "Finished anyway.", "ANNOUNCE_SKIP"], ANN: ["REPLY_SKIP"]})
    async with (
        web_of(tmp_path, settings, tools=(gate.tool,)) as web,
        connected(web, transport, mode=mode) as client,
    ):
        arguments = {"agentId": "bob", "message": "go", "timeoutSeconds": 45}
        waiting = asyncio.create_task(client.call_tool("sessions_send", arguments))
        async with asyncio.timeout(LIMIT_S):
            await gate.reached.wait()
            waiting.cancel()
            await cancelled.wait()
        gate.open.set()
        await until_said(web.gateway, BOB, "Finished anyway.")


async def until_said(gateway: Any, key: str, text: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while text not in await texts(gateway, key, "assistant"):
            await asyncio.sleep(0.02)


@pytest.mark.promise("mcp_server.is_the_session")
async def test_a_send_that_would_close_a_circle_of_waits_is_refused(tmp_path: Path) -> None:
    """Ann's agent waits for bob, and a client that acts as bob asks ann back."""
    gate = Gate()
    settings = scripted(
        **{
            ANN: [calls("sessions_send", agentId="bob", message="go", timeoutSeconds=40), "ok"],
            BOB: [calls("hold"), "ok", "ANNOUNCE_SKIP"],
        }
    )
    async with web_of(tmp_path, settings, tools=(gate.tool,)) as web:
        said = {"sessionKey": ANN, "message": "x", "idempotencyKey": "k"}
        assert (await web.ask("POST", "/rpc/chat.send", {"params": said})).status == 200
        async with asyncio.timeout(LIMIT_S):
            await gate.reached.wait()
        async with connected(web, "http", BOB) as client:
            answer = await use(client, "sessions_send", agentId="ann", message="and you?")
            assert (answer["status"], answer["code"]) == ("forbidden", "deadlock")
        gate.open.set()


@TRANSPORTS
@MODES
@pytest.mark.promise("mcp_server.resources")
async def test_transcripts_are_resources(tmp_path: Path, transport: str, mode: str) -> None:
    async with web_of(tmp_path, OPEN) as web, connected(web, transport, mode=mode) as client:
        await use(client, "sessions_send", agentId="bob", message="say hello", timeoutSeconds=45)
        listed = {each.name: str(each.uri) for each in (await client.list_resources()).resources}
        assert listed["main"] == "session://main"
        assert listed[BOB] == "session://agent%3Abob%3Amain"
        for uri in (listed[BOB], f"session://{BOB}"):
            [content] = (await client.read_resource(uri)).contents
            assert content.mime_type == "application/json"
            assert '"hello"' in content.text
        [template] = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "session://{key}"


async def test_a_transcript_that_the_session_may_not_read_is_no_resource(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web, connected(web, "http") as client:
        await create_sessions(web.gateway, BOB)
        assert [each.name for each in (await client.list_resources()).resources] == ["main"]
        with pytest.raises(MCPError) as refused:
            await client.read_resource(f"session://{BOB}")
        assert refused.value.error.data["code"] == "visibility.tree"


async def test_a_client_spawns_a_sub_agent_and_waits_for_it(tmp_path: Path) -> None:
    settings = OPEN | {"models": {"rehearsal": {"scripts": {ANN: [], "*": ["Found it.", "ANNOUNCE_SKIP"]}}}}
    async with web_of(tmp_path, settings) as web, connected(web, "http") as client:
        child = await use(client, "sessions_spawn", task="find it")
        assert child["status"] == "accepted"
        ended = await use(client, "agents_wait", ids=[child["runId"]], timeoutSeconds=45)
        assert ended["status"] == "ok", ended
        assert ended["completed"][0].get("reply") == "Found it.", ended
        listed = await use(client, "subagents")
        assert listed["total"] == 1


async def test_a_run_of_a_session_that_the_client_may_not_read_cannot_be_waited_for(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web, connected(web, "http") as client:
        sent = await web.ask(
            "POST",
            "/rpc/chat.send",
            {"params": {"sessionKey": BOB, "message": "say hi", "idempotencyKey": "k"}},
        )
        refused = await use(client, "agents_wait", ids=[sent.json["payload"]["runId"]])
        unknown = await use(client, "agents_wait", ids=["no-such-run"])
        assert refused["isError"] and unknown["isError"]
        assert refused["code"] == unknown["code"]


async def test_the_tools_work_after_a_restart_with_the_same_grant(tmp_path: Path) -> None:
    async with web_of(tmp_path, OPEN) as web:
        made = await grant(web)
    async with web_of(tmp_path, OPEN) as web, over_http(web.url, made["token"]) as client:
        assert (await use(client, "session_status"))["key"]


def test_serving_does_not_import_the_package() -> None:
    code = "import sys, hobnob.gateway, hobnob.api.server, hobnob.cli; print('mcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
