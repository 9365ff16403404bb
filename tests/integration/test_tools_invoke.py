"""A tool called from outside: over HTTP and as a method, which are the same."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests import stores
from tests.integration.web import FOR_BOB, OWNER_TOKEN, WRITER, Web, web_of
from tests.known_tools import SESSION_TOOLS

from hobnob.client import open_client
from hobnob.errors import RpcFailed
from hobnob.store import exchanges, sessions
from hobnob.tools import Context, Tool, tool

ANN, BOB = "agent:ann:main", "agent:bob:main"
REACH = {"tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}}}


def stamper(stamped: list[str], *, repeatable: bool = False) -> Tool:
    @tool(outside=True, repeatable=repeatable)
    async def stamp(context: Context, text: str) -> dict[str, Any]:
        """Leave a mark."""
        stamped.append(text)
        return {"stamped": text, "by": context.session.key, "times": len(stamped)}

    return stamp


async def invoke(web: Web, tool: str, token: str = OWNER_TOKEN, **body: Any) -> tuple[int, Any]:
    answer = await web.ask("POST", "/tools/invoke", {"tool": tool, **body}, token=token)
    return answer.status, answer.json.get("result") or answer.json["error"]


@pytest.mark.promise("gateway.tools_invoke")
async def test_a_tool_of_a_session_can_be_called_from_outside(tmp_path: Path) -> None:
    async with web_of(tmp_path, tools=(stamper([]),)) as web:
        status, result = await invoke(web, "stamp", args={"text": "x"}, sessionKey="main")
        assert status == 200
        assert result["details"] == {"stamped": "x", "by": ANN, "times": 1}
        assert orjson.loads(result["content"][0]["text"]) == result["details"]
        assert (await invoke(web, "stamp", args={"text": "x"}, agentId="bob"))[1]["details"]["by"] == BOB


async def test_the_method_is_the_route(tmp_path: Path) -> None:
    async with (
        web_of(tmp_path, tools=(stamper([]),)) as web,
        open_client(web.url.replace("http", "ws"), OWNER_TOKEN) as client,
    ):
        answer = await client.call("tools.invoke", tool="stamp", args={"text": "x"})
        assert answer["result"]["details"]["stamped"] == "x"
        with pytest.raises(RpcFailed, match="Tool not available: sessions_spawn"):
            await client.call("tools.invoke", tool="sessions_spawn", args={"task": "x"})


@pytest.mark.promise("gateway.tools_invoke_off")
async def test_what_has_others_act_or_touches_the_host_is_off(tmp_path: Path) -> None:
    async def done(context: Context) -> str:
        """Do it."""
        return "done"

    on_the_host = ("exec", "process", "write", "edit", "message", "cron", "gateway")
    own = (*(tool(name=name)(done) for name in on_the_host), tool(name="harmless", outside=True)(done))
    async with web_of(tmp_path, tools=own) as web:
        for name in ("sessions_send", "sessions_spawn", "sessions_yield", *on_the_host):
            status, error = await invoke(web, name)
            assert (status, error["type"]) == (404, "not_found")
            assert error["message"] == f"Tool not available: {name}"
            assert "gateway.tools.allow" in error["fix"]
        assert (await invoke(web, "harmless"))[0] == 200


@pytest.mark.promise("gateway.tools_invoke_off")
async def test_the_settings_turn_tools_on_and_off(tmp_path: Path) -> None:
    rules = {"allow": ["sessions_send"], "deny": ["agents_list"]}
    async with web_of(tmp_path, REACH, gateway={"tools": rules}) as web:
        args = {"agentId": "bob", "message": "say hi"}
        status, result = await invoke(web, "sessions_send", args=args)
        assert (status, result["details"]["status"], result["details"]["reply"]) == (200, "ok", "hi")
        assert (await invoke(web, "agents_list"))[0] == 404
        assert (await invoke(web, "sessions_spawn", args={"task": "x"}))[0] == 404


async def test_a_tool_the_session_does_not_have_is_not_there(tmp_path: Path) -> None:
    denied = {"tools": {"deny": ["sessions_list"]}}
    async with web_of(tmp_path, denied) as web:
        refusals = [await invoke(web, name) for name in ("sessions_list", "no_such_tool")]
        assert [status for status, _ in refusals] == [404, 404]
        said = [error["message"].rpartition(": ")[0] for _, error in refusals]
        assert said == ["Tool not available", "Tool not available"]  # which of both it is, is not told


@pytest.mark.promise("policy.decides_http")
async def test_a_tool_from_outside_sees_no_more_than_its_session(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        status, error = await invoke(web, "sessions_history", args={"sessionKey": BOB})
        assert (status, error["type"], error["code"]) == (403, "forbidden", "visibility.tree")
        assert "tools.sessions.visibility" in error["fix"]


@pytest.mark.promise("access.tokens_of_some_agents")
async def test_a_token_for_one_agent_sees_no_other_through_a_tool(tmp_path: Path) -> None:
    allowed = {"allow": ["group:sessions"]}
    async with web_of(tmp_path, REACH, gateway={"tools": allowed}) as web:
        for name in SESSION_TOOLS:
            status, error = await invoke(web, name, FOR_BOB, agentId="bob")
            assert (status, error["code"]) == (403, "tools.narrow_token"), name


async def test_who_may_not_control_a_session_cannot_by_a_tool(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        args = {"model": "rehearsal/rehearsal"}
        status, error = await invoke(web, "session_status", WRITER, args=args)
        assert (status, error["code"]) == (403, "scope.missing")
        assert (await invoke(web, "session_status", WRITER))[0] == 200
        assert (await invoke(web, "session_status", args=args))[0] == 200


async def test_wrong_arguments_are_refused_before_anything_happens(tmp_path: Path) -> None:
    stamped: list[str] = []
    wrong: list[tuple[Any, str]] = [
        ({}, "text is required"),
        ({"txt": "x"}, "did you mean text?"),
        ({"text": 1}, "text"),
    ]
    async with web_of(tmp_path, tools=(stamper(stamped),)) as web:
        for args, said in wrong:
            status, error = await invoke(web, "stamp", args=args)
            assert (status, error["type"], error["code"]) == (400, "tool_error", "tool.refused")
            assert said in error["message"]
        assert stamped == []


async def test_a_tool_that_breaks_is_a_failure_of_the_tool(tmp_path: Path) -> None:
    @tool(outside=True)
    async def broken(context: Context) -> str:
        """Break."""
        raise RuntimeError("no luck")

    async with web_of(tmp_path, tools=(broken,)) as web:
        status, error = await invoke(web, "broken")
        assert (status, error["type"], error["code"]) == (500, "tool_error", "tool.failed")
        assert "no luck" in error["message"]


async def test_a_rehearsal_of_a_call_checks_it_and_does_nothing(tmp_path: Path) -> None:
    stamped: list[str] = []
    async with web_of(tmp_path, tools=(stamper(stamped),)) as web:
        status, result = await invoke(web, "stamp", args={"text": "x"}, dryRun=True)
        assert (status, result["details"]["dryRun"], stamped) == (200, True, [])
        assert (await invoke(web, "stamp", args={}, dryRun=True))[0] == 400
        assert (await invoke(web, "sessions_spawn", args={"task": "x"}, dryRun=True))[0] == 404


async def test_an_action_is_one_of_the_arguments(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        assert (await invoke(web, "subagents", action="list"))[1]["details"]["total"] == 0
        assert (await invoke(web, "subagents", action="nope"))[0] == 400


@pytest.mark.promise("gateway.tools_invoke_once")
async def test_the_same_call_with_the_same_key_has_its_effect_once_also_after_a_restart(
    tmp_path: Path,
) -> None:
    stamped: list[str] = []
    call = {"args": {"text": "x"}, "idempotencyKey": "k"}
    async with web_of(tmp_path, tools=(stamper(stamped),)) as web:
        first = await invoke(web, "stamp", **call)
        assert await invoke(web, "stamp", **call) == first
        others = [("stamp", {"args": {"text": "y"}, "idempotencyKey": "k"}, 409)]
        others.append(("stamp", {"args": {"text": "y"}, "idempotencyKey": "other"}, 200))
        assert [(await invoke(web, name, **body))[0] for name, body, _ in others] == [409, 200]
    async with web_of(tmp_path, tools=(stamper(stamped),)) as web:
        assert await invoke(web, "stamp", **call) == first
    assert stamped == ["x", "y"]


@pytest.mark.promise("gateway.tools_invoke_once")
async def test_of_two_at_a_time_with_one_key_one_is_run(tmp_path: Path) -> None:
    reached, go = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    @tool(outside=True)
    async def slow(context: Context) -> str:
        """Take time."""
        ran.append("x")
        reached.set()
        await go.wait()
        return "done"

    async with web_of(tmp_path, tools=(slow,)) as web, asyncio.TaskGroup() as group:
        first = group.create_task(invoke(web, "slow", idempotencyKey="k"))
        await reached.wait()
        status, error = await invoke(web, "slow", idempotencyKey="k")
        assert (status, error["code"]) == (409, "conflict")
        go.set()
        assert (await first)[0] == 200
        assert ran == ["x"]


@pytest.mark.promise("gateway.tools_invoke_once")
async def test_a_send_or_spawn_whose_answer_was_lost_is_not_made_again(tmp_path: Path) -> None:
    send = {"args": {"agentId": "bob", "message": "say hi", "timeoutSeconds": 0}, "idempotencyKey": "s"}
    spawn = {"args": {"task": "say ho"}, "idempotencyKey": "c"}
    runs = []
    for _ in range(2):
        async with web_of(tmp_path, REACH, gateway={"tools": {"allow": ["group:sessions"]}}) as web:
            answers = [
                await invoke(web, "sessions_send", **send),
                await invoke(web, "sessions_spawn", **spawn),
            ]
            assert [status for status, _ in answers] == [200, 200], answers
            runs.append([result["details"]["runId"] for _, result in answers])
            found = await web.gateway.store.read(exchanges.page)
            assert sorted(exchange.kind for exchange in found) == ["send", "spawn"]
        # As a crash before it was kept leaves it.
        stores.execute(tmp_path / "hobnob.db", "delete from idempotency_keys where key like '%:result'")
    assert runs[0] == runs[1]


async def test_the_main_session_of_an_agent_begins_when_it_is_first_acted_for(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        assert (await invoke(web, "sessions_list"))[0] == 200
        assert await web.gateway.store.read(sessions.find, ANN) is not None
        status, error = await invoke(web, "sessions_list", sessionKey="hook:1")
        assert (status, error["code"]) == (404, "session.not_found")
        assert (await invoke(web, "sessions_list", agentId="nobody"))[0] == 404
        assert (await invoke(web, "sessions_list", sessionKey=BOB, agentId="ann"))[0] == 400


async def test_an_archived_session_is_not_acted_for(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        await invoke(web, "sessions_list")
        await web.ask("POST", "/rpc/sessions.archive", {"params": {"key": ANN}})
        status, error = await invoke(web, "sessions_list")
        assert (status, error["code"]) == (409, "session.archived")


async def test_a_tool_that_is_not_marked_as_callable_is_not_until_a_setting_names_it(tmp_path: Path) -> None:
    @tool()
    async def secret_lamp(context: Context) -> str:
        """Only for agents."""
        return "lit"

    async with web_of(tmp_path, tools=[secret_lamp]) as web:
        assert (await invoke(web, "secret_lamp"))[0] == 404
    allowed = {"tools": {"allow": ["secret_lamp"]}}
    async with web_of(tmp_path, tools=[secret_lamp], gateway=allowed) as web:
        assert (await invoke(web, "secret_lamp"))[0] == 200
