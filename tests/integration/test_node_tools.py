"""Agents and nodes: the tool `nodes`, and commands on a node with a plan and an approval."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.node_client import FakeNode, NodeKey, approve, node_of
from tests.integration.sandboxed import needs_sandbox
from tests.integration.test_wire import served
from tests.waiting import LIMIT_S

from hobnob.client import Client, open_client
from hobnob.config import Settings
from hobnob.keys import parse
from hobnob.nodes.commands import bounded
from hobnob.policy import Confinement
from hobnob.policy.toolsets import ToolFacts, tool_set
from hobnob.types import Session

PLAN = {"argv": ["/usr/bin/sh", "-lc", "make test"], "cwd": "/src", "commandText": "make test", "extra": [1]}
ON_NODE = {"tools": {"exec": {"host": "node"}}}


@asynccontextmanager
async def agents_and_node(
    home: Path, settings: Any = None, **changes: Any
) -> AsyncIterator[tuple[Client, FakeNode, str, str]]:
    settings = {"gateway": {"port": 0}, **(settings or {})}
    async with served(home, settings) as (url, token), open_client(url, token) as owner:
        async with node_of(url, token, **changes) as node:
            await approve(owner, node)
            yield owner, node, url, token


def use(owner: Client, tool: str, session: str = "main", **arguments: Any) -> asyncio.Task[Any]:
    """Have the agent of a session call a tool; the task ends with what the tool gave back."""

    async def turn() -> Any:
        key = json.dumps([tool, arguments])[:200]
        message = f"call {tool} {json.dumps(arguments)}"
        await owner.call("agent", message=message, sessionKey=session, idempotencyKey=key)
        history = await owner.call("chat.history", sessionKey=session)
        results = [m for m in history["messages"] if m["role"] == "toolResult"]
        return json.loads(results[-1]["content"][0]["text"])

    return asyncio.ensure_future(turn())


async def waiting_approval(owner: Client) -> Any:
    async with asyncio.timeout(LIMIT_S):
        while not (found := (await owner.call("exec.approval.list"))["approvals"]):
            await asyncio.sleep(0.01)
    return found[0]


async def test_an_agent_sees_the_nodes_and_what_they_offer(tmp_path: Path) -> None:
    async with agents_and_node(tmp_path) as (owner, node, _, _):
        seen = await use(owner, "nodes")
        assert [(n["displayName"], n["connected"]) for n in seen["nodes"]] == [("Build Node", True)]
        described = await use(owner, "nodes", action="describe", node=node.key.id[:8])
        assert "system.which" in described["commands"]


async def test_an_agent_invokes_a_command_and_shows_a_note(tmp_path: Path) -> None:
    async with agents_and_node(tmp_path) as (owner, node, _, _):
        asking = use(
            owner, "nodes", action="invoke", node="Build Node", command="system.which", params={"bins": ["a"]}
        )
        request = await node.asked()
        await node.answer(request, {"bins": {}})
        assert (await asking)["payload"] == {"bins": {}}
        noting = use(owner, "nodes", action="notify", node="Build Node", title="Done", body="All green.")
        request = await node.asked()
        assert json.loads(request["paramsJSON"]) == {"title": "Done", "body": "All green."}
        await node.answer(request, {"ok": True})
        assert (await noting)["status"] == "ok"


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ({"action": "invoke", "node": "Build Node", "command": "system.run"}, "Use the tool exec"),
        ({"action": "invoke", "node": "Build Node", "command": "system.run.prepare"}, "Use the tool exec"),
        ({"action": "invoke", "node": "Build Node"}, "needs command"),
        ({"action": "invoke", "node": "nobody", "command": "x"}, "There is no node"),
        ({"action": "invoke", "node": "Build Node", "command": "camera.snap"}, "no approved command"),
        ({"action": "describe"}, "Give node"),
        ({"action": "notify", "node": "Build Node"}, "needs title or body"),
    ],
)
async def test_what_an_agent_cannot_do_with_nodes_is_said(
    tmp_path: Path, arguments: Any, problem: str
) -> None:
    async with agents_and_node(tmp_path) as (owner, _, _, _):
        answer = await use(owner, "nodes", **arguments)
        assert problem in json.dumps(answer)


@pytest.mark.promise("nodes.exec_plan")
async def test_a_command_on_a_node_is_shown_as_its_plan_and_runs_once_it_is_allowed(tmp_path: Path) -> None:
    async with agents_and_node(tmp_path, ON_NODE) as (owner, node, _, _):
        running = use(owner, "exec", command="make test", env={"CI": "1"})
        prepare = await node.asked()
        asked = json.loads(prepare["paramsJSON"])
        assert (prepare["command"], asked["rawCommand"]) == ("system.run.prepare", "make test")
        assert asked["sessionKey"] == "agent:main:main"
        await node.answer(prepare, {"plan": PLAN})
        question = await waiting_approval(owner)
        shown = question["request"]
        assert (shown["host"], shown["node"], shown["nodeId"]) == ("node", "Build Node", node.key.id)
        assert shown["plan"] == {"argv": PLAN["argv"], "cwd": "/src"}
        assert node.requests.empty()  # nothing runs before the answer
        await owner.call("exec.approval.resolve", id=question["id"], decision="allow-once")
        run = await node.asked()
        sent = json.loads(run["paramsJSON"])
        assert (run["command"], sent["systemRunPlan"], sent["command"]) == ("system.run", PLAN, PLAN["argv"])
        assert (sent["cwd"], sent["env"], sent["approved"]) == ("/src", {"CI": "1"}, True)
        await node.answer(
            run, {"exitCode": 0, "success": True, "timedOut": False, "stdout": "ok\n", "stderr": ""}
        )
        done = await running
        assert (done["status"], done["node"], done["output"]) == ("ok", "Build Node", "ok\n")


@pytest.mark.promise("nodes.exec_plan")
async def test_a_denied_command_never_reaches_the_node(tmp_path: Path) -> None:
    async with agents_and_node(tmp_path, ON_NODE) as (owner, node, _, _):
        running = use(owner, "exec", command="rm -rf build")
        await node.answer(await node.asked(), {"plan": PLAN})
        question = await waiting_approval(owner)
        await owner.call("exec.approval.resolve", id=question["id"], decision="deny")
        assert (await running)["code"] == "exec.denied"
        assert node.requests.empty()


async def test_without_asking_the_plan_runs_at_once(tmp_path: Path) -> None:
    settings = {"tools": {"exec": {"node": "Build Node", "nodeAsk": "off"}}}
    async with agents_and_node(tmp_path, settings) as (owner, node, _, _):
        running = use(owner, "exec", command="make test", host="node")
        await node.answer(await node.asked(), {"plan": PLAN})
        run = await node.asked()
        assert "approved" not in json.loads(run["paramsJSON"])
        await node.answer(run, {"exitCode": 2, "success": False, "stderr": "no rule to make target"})
        done = await running
        assert (done["status"], done["exitCode"]) == ("failed", 2)
        assert done["output"] == "no rule to make target"


async def test_a_node_without_plans_gets_the_command_as_it_is(tmp_path: Path) -> None:
    settings = {"tools": {"exec": {"host": "node", "nodeAsk": "off"}}}
    async with agents_and_node(tmp_path, settings, commands=["system.run"]) as (owner, node, _, _):
        running = use(owner, "exec", command="date")
        run = await node.asked()
        assert json.loads(run["paramsJSON"])["command"] == ["/bin/sh", "-lc", "date"]
        await node.answer(run, {"exitCode": 0, "timedOut": True})
        assert (await running)["status"] == "timeout"


@pytest.mark.parametrize("plan", [None, {}, {"argv": []}, {"argv": [1]}, {"argv": ["x" * 300_000]}, "text"])
async def test_a_plan_that_cannot_be_read_is_refused(tmp_path: Path, plan: Any) -> None:
    async with agents_and_node(tmp_path, ON_NODE) as (owner, node, _, _):
        running = use(owner, "exec", command="date")
        await node.answer(await node.asked(), {"plan": plan})
        assert "no usable plan" in (await running)["error"]


async def test_a_stopped_turn_stops_its_command_on_the_node(tmp_path: Path) -> None:
    settings = {"tools": {"exec": {"host": "node", "nodeAsk": "off"}}}
    async with agents_and_node(tmp_path, settings, commands=["system.run"]) as (owner, node, _, _):
        running = use(owner, "exec", command="sleep 600")
        run = await node.asked()
        await owner.call("chat.abort", sessionKey="main")
        assert (await node.heard("node.invoke.cancel"))["invokeId"] == run["id"]
        running.cancel()


async def test_which_node_is_meant_is_never_guessed(tmp_path: Path) -> None:
    async with agents_and_node(tmp_path, ON_NODE) as (owner, node, url, token):
        async with node_of(url, token, NodeKey(), client={"displayName": "Other"}) as other:
            await approve(owner, other)
            answer = await use(owner, "exec", command="date")
            assert "Several nodes run commands" in answer["error"]
        await node.socket.close()
        await other.socket.wait_closed()
        away = await use(owner, "exec", command="date ")
        assert "No node that runs commands is connected" in away["error"]


async def test_the_node_of_the_settings_is_the_only_one(tmp_path: Path) -> None:
    settings = {"tools": {"exec": {"node": "Build Node"}}}
    async with agents_and_node(tmp_path, settings) as (owner, _, url, token):
        async with node_of(url, token, NodeKey(), client={"displayName": "Other"}) as other:
            await approve(owner, other)
            answer = await use(owner, "exec", command="date", host="node", node="Other")
            assert (answer["status"], answer["code"]) == ("forbidden", "exec.node")


SANDBOXED = {
    "tools": {"exec": {"node": "Build Node"}},
    "agents": {"defaults": {"sandbox": {"mode": "all"}}},
}


@needs_sandbox
@pytest.mark.parametrize(("settings", "code"), [({}, "exec.host"), (SANDBOXED, "sandbox.host")])
async def test_commands_do_not_reach_a_node_unless_a_setting_says_so(
    tmp_path: Path, settings: Any, code: str
) -> None:
    async with agents_and_node(tmp_path, settings) as (owner, node, _, _):
        answer = await use(owner, "exec", command="date", host="node")
        assert (answer["status"], answer["code"]) == ("forbidden", code)
        assert node.requests.empty()


@pytest.mark.parametrize(
    ("key", "confinement", "code"),
    [
        ("agent:main:main", Confinement(True, "rw"), "sandbox.nodes"),
        ("agent:main:node-1", Confinement(False, "rw"), "tools.node"),
    ],
)
def test_sandboxed_sessions_and_those_of_nodes_have_no_tool_for_nodes(
    key: str, confinement: Confinement, code: str
) -> None:
    tools = [ToolFacts("nodes", "nodes")]
    verdicts = tool_set(Settings(), Session.of(parse(key)), tools, confinement=confinement)
    assert (verdicts["nodes"].allowed, verdicts["nodes"].code) == (False, code)


def test_an_output_beyond_the_limit_keeps_its_head_and_tail() -> None:
    text = bounded("a" + "x" * 100_000 + "z")
    assert (text[0], text[-1], len(text) < 65_000) == ("a", "z", True)
    assert "36,002 characters left out" in text
