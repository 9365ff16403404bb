"""Which tools there are, which a session has, and the tool `message`."""

from pathlib import Path

import pytest
from tests.integration.helpers import call_method, spawning_agents, use
from tests.integration.sandboxed import needs_sandbox, without_sandbox
from tests.known_tools import CALLABLE_BY_CLIENTS, TOOL_GROUPS
from tests.waiting import LIMIT_S

from hobnob.requests import HistoryQuery
from hobnob.testing import OWNER, exchange_ended, rehearse, say


async def test_the_catalogue_holds_every_tool_once_in_the_group_the_rules_name(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        found = (await call_method(gateway, "tools.catalog"))["payload"]
        groups = {group["id"]: {tool["id"] for tool in group["tools"]} for group in found["groups"]}
        assert groups == TOOL_GROUPS
        assert {tool.name for tool in gateway.tools.facts if tool.outside} == CALLABLE_BY_CLIENTS
        by_name = {tool["id"]: tool for group in found["groups"] for tool in group["tools"]}
        assert by_name["exec"]["defaultProfiles"] == ["coding", "full"]
        assert all(tool["description"] for tool in by_name.values())


@pytest.mark.promise("toolsets.explained")
async def test_each_tool_of_a_session_is_shown_with_the_rule_that_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_sandbox(monkeypatch)
    async with rehearse(tmp_path, {"tools": {"deny": ["group:web"], "profile": "coding"}}) as gateway:
        found = (await call_method(gateway, "tools.effective", sessionKey="main"))["payload"]
        tools = {tool["id"]: tool for group in found["groups"] for tool in group["tools"]}
        assert (tools["read"]["allowed"], tools["read"]["rule"]) == (True, "tools.profile")
        assert tools["web_fetch"]["rule"] == "tools.denied"
        assert tools["web_fetch"]["fix"] == [{"path": "tools.deny", "value": []}]
        assert tools["message"]["rule"] == "tools.profile"
        assert tools["exec"]["rule"] == "sandbox.unavailable"
        assert (found["profile"], found["sandbox"]["works"]) == ("coding", False)


@needs_sandbox
@pytest.mark.promise("toolsets.explained", "spawn.receipt_tells_what_runs")
async def test_a_childs_receipt_names_the_tools_that_are_explained_for_it(tmp_path: Path) -> None:
    settings = spawning_agents()
    settings["tools"]["subagents"] = {"tools": {"deny": ["exec"]}}
    async with rehearse(tmp_path, settings) as gateway:
        receipt = await use(gateway, "sessions_spawn", task="say done", agentId="bob")
        await exchange_ended(gateway, receipt["exchangeId"])
        found = (await call_method(gateway, "tools.effective", sessionKey=receipt["childSessionKey"]))[
            "payload"
        ]
        tools = {tool["id"]: tool for group in found["groups"] for tool in group["tools"]}
        assert receipt["tools"] == sorted(name for name, tool in tools.items() if tool["allowed"])
        assert tools["exec"]["rule"] == "tools.subagent_denied"
        assert tools["sessions_send"]["rule"] == "tools.subagent_sessions"


async def test_a_message_reaches_the_people_of_the_session(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        answer = await use(gateway, "message", "main", message="half way there")
        assert (answer["status"], answer["channel"]) == ("accepted", "webchat")
        [delivery] = (await gateway.sessions.queries.deliveries(OWNER, "main"))[1]
        assert (delivery.text, delivery.delivery_id) == ("half way there", answer["deliveryId"])


async def test_a_session_nobody_wrote_to_has_nobody_to_message(tmp_path: Path) -> None:
    step = {"toolCalls": [{"name": "message", "arguments": {"message": "hello?"}}]}
    async with rehearse(tmp_path, spawning_agents({"*": [step, "done", "Done."]})) as gateway:
        receipt = await use(gateway, "sessions_spawn", task="x", agentId="bob")
        await exchange_ended(gateway, receipt["exchangeId"])
        history = await gateway.sessions.queries.history(
            OWNER, receipt["childSessionKey"], HistoryQuery(include_tools=True)
        )
        assert "message.no_route" in str(history["messages"])


async def test_the_send_policy_holds_for_messages(tmp_path: Path) -> None:
    settings = {"session": {"sendPolicy": {"default": "allow"}}}
    async with rehearse(tmp_path, settings) as gateway:
        await say(gateway, "hello")
        turn = await gateway.sessions.send(OWNER, "main", 'call message {"message": "psst"}')
        await gateway.sessions.patch(OWNER, "main", send_policy="deny")
        await gateway.sessions.wait(turn.turn_id, LIMIT_S)
        history = await gateway.sessions.queries.history(OWNER, "main", HistoryQuery(include_tools=True))
        posted = (await gateway.sessions.queries.deliveries(OWNER, "main"))[1]
        assert ("send_policy.denied" in str(history["messages"])) == (not posted)
