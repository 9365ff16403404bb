"""Commands that wait for a person's yes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import Gate
from tests.integration.sandboxed import needs_sandbox, run
from tests.waiting import LIMIT_S, until

from hobnob import briefings
from hobnob.api.auth import owner_token
from hobnob.api.server import open_server
from hobnob.approvals import ASKED_CHARS, payload
from hobnob.client import Client, open_client
from hobnob.errors import Conflict, NotAllowed, NotFound, RpcFailed
from hobnob.gateway import Gateway, api_services
from hobnob.policy import Operator
from hobnob.requests import HistoryQuery, SpawnRequest
from hobnob.sessions import InboundMessage
from hobnob.store import approvals, sessions
from hobnob.testing import OWNER, calls, rehearse, say, script
from hobnob.types import Approval, QueueMode

pytestmark = needs_sandbox
READER = {"name": "reader", "token": "read-only-token", "scopes": ["operator.read"]}
HELPER = {"name": "helper", "token": "for-helper-token", "scopes": ["operator.admin"], "agents": ["helper"]}


def asking(**more: Any) -> dict[str, Any]:
    return {"tools": {"exec": {"ask": "always"} | more}}


async def question(gateway: Gateway) -> Approval:
    async with asyncio.timeout(LIMIT_S):
        while not (found := await gateway.approvals.pending(OWNER)):
            await asyncio.sleep(0.01)
    return found[0]


@pytest.mark.promise("exec.asks_first", "exec.asks_with_context")
async def test_a_command_runs_once_a_person_said_yes_and_not_before(tmp_path: Path) -> None:
    log = tmp_path / "agents/main/workspace/log"
    async with rehearse(tmp_path, asking()) as gateway:
        waiting = asyncio.create_task(run(gateway, "echo ran >> log"))
        asked = await question(gateway)
        request = payload(asked)["request"]
        assert (request["command"], request["workdir"], request["sandbox"]) == ("echo ran >> log", ".", True)
        assert (request["sessionKey"], request["agentId"]) == ("agent:main:main", "main")
        assert request["asked"].startswith("call exec")
        assert not log.exists()
        decided = await gateway.approvals.resolve(OWNER, asked.approval_id[:13], "allow-once")
        assert (decided.state, decided.decided_by) == ("allowed", "owner")
        assert (await waiting)["status"] == "ok"
        assert await gateway.approvals.pending(OWNER) == []
        with pytest.raises(NotFound):
            await gateway.approvals.resolve(OWNER, asked.approval_id, "allow-once")
    assert log.read_text() == "ran\n"


async def test_a_secret_at_the_cut_of_a_question_is_redacted(tmp_path: Path) -> None:
    secret = "sk-" + "proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8x" * 2
    steps = script(calls("exec", command="true"), "done")
    async with rehearse(tmp_path, asking() | steps) as gateway:
        waiting = asyncio.create_task(say(gateway, f"{'x' * (ASKED_CHARS - 10)} {secret}"))
        asked = await question(gateway)
        assert payload(asked)["request"]["asked"].endswith("xx sk-pro…Uv")
        await gateway.approvals.resolve(OWNER, asked.approval_id, "deny")
        await waiting


@pytest.mark.promise("exec.asks_first")
async def test_after_a_no_the_command_is_refused(tmp_path: Path) -> None:
    async with rehearse(tmp_path, asking()) as gateway:
        waiting = asyncio.create_task(run(gateway, "touch ran"))
        asked = await question(gateway)
        await gateway.approvals.resolve(OWNER, asked.approval_id, "deny")
        answer = await waiting
        assert (answer["status"], answer["code"]) == ("forbidden", "exec.denied")
    assert not (tmp_path / "agents/main/workspace/ran").exists()


@pytest.mark.promise("exec.silence_is_no")
async def test_a_question_nobody_answers_is_answered_with_no(tmp_path: Path) -> None:
    async with rehearse(tmp_path, asking(askTimeoutSec=1)) as gateway:
        answer = await run(gateway, "touch ran")
        assert (answer["status"], answer["code"]) == ("forbidden", "exec.not_approved")
        assert await gateway.approvals.pending(OWNER) == []
    assert not (tmp_path / "agents/main/workspace/ran").exists()


@pytest.mark.promise("exec.waiting_holds_no_slot")
async def test_a_turn_that_waits_for_a_person_holds_no_slot(tmp_path: Path) -> None:
    settings = asking() | {"agents": {"defaults": {"maxConcurrent": 1}}}
    async with rehearse(tmp_path, settings) as gateway:
        waiting = asyncio.create_task(run(gateway, "true"))
        asked = await question(gateway)
        assert (await say(gateway, "what is 1 + 1?", "hook:other")).reply == "1 + 1 = 2"
        await gateway.approvals.resolve(OWNER, asked.approval_id, "allow-once")
        assert (await waiting)["status"] == "ok"


@pytest.mark.promise("exec.restart_is_no")
async def test_a_question_that_was_open_at_a_restart_never_lets_its_command_run(tmp_path: Path) -> None:
    settings = asking() | script(calls("exec", command="touch ran"), "I see.")
    async with rehearse(tmp_path, settings) as gateway:
        turn = await gateway.sessions.send(OWNER, "main", "go")
        asked = await question(gateway)
    async with rehearse(tmp_path, settings) as gateway:
        ended = await gateway.sessions.wait(turn.turn_id, LIMIT_S)
        assert ended.reply == "I see."
        history = await gateway.sessions.queries.history(OWNER, "main", HistoryQuery(include_tools=True))
        assert "Interrupted" in str(history["messages"])
        with pytest.raises(NotFound):
            await gateway.approvals.resolve(OWNER, asked.approval_id, "allow-once")
    assert not (tmp_path / "agents/main/workspace/ran").exists()


@pytest.mark.promise("exec.restart_is_no")
async def test_a_question_that_a_killed_gateway_left_is_answered_with_no_at_the_next_start(
    tmp_path: Path,
) -> None:
    left = Approval(
        session_key="agent:main:main",
        agent_id="main",
        turn_id="t",
        call_id="c",
        command="touch ran",
        expires_at_ms=2**60,
    )
    async with rehearse(tmp_path, asking()) as gateway:
        await say(gateway, "say: hello")  # it has recovered by then
        await gateway.store.write(approvals.ask, left)
        with pytest.raises(Conflict, match="Nothing waits for this answer"):
            await gateway.approvals.resolve(OWNER, left.approval_id, "allow-once")
    async with rehearse(tmp_path, asking()) as gateway:
        assert await gateway.approvals.pending(OWNER) == []
        kept = await gateway.store.read(approvals.find, left.approval_id)
        assert kept is not None
        assert (kept.state, kept.decided_by) == ("expired", "the gateway was restarted")


async def test_a_stopped_turn_takes_its_question_back(tmp_path: Path) -> None:
    async with rehearse(tmp_path, asking()) as gateway:
        turn = await gateway.sessions.send(OWNER, "main", 'call exec {"command": "true"}')
        await question(gateway)
        await gateway.sessions.abort(OWNER, "main")
        assert (await gateway.sessions.wait(turn.turn_id, LIMIT_S)).outcome == "cancelled"
        assert await gateway.approvals.pending(OWNER) == []


@asynccontextmanager
async def served(home: Path) -> AsyncIterator[tuple[Gateway, Client, Any]]:
    settings = asking() | {"gateway": {"port": 0, "auth": {"tokens": [READER, HELPER]}}}
    async with (
        rehearse(home, settings) as gateway,
        open_server(api_services(gateway)) as url,
        open_client(url, owner_token(gateway.config)) as client,
    ):
        yield gateway, client, lambda token: open_client(url, token)


@pytest.mark.promise("exec.asks_with_context")
async def test_the_question_and_the_answer_reach_clients_as_events(tmp_path: Path) -> None:
    async with served(tmp_path) as (gateway, client, _):
        await client.call("sessions.subscribe")
        waiting = asyncio.create_task(run(gateway, "echo hi"))
        asked = await _event(client, "exec.approval.requested")
        assert asked["request"]["command"] == "echo hi"
        listed = await client.call("exec.approval.list")
        assert listed["approvals"] == [asked]
        answer = await client.call("exec.approval.resolve", id=asked["id"], decision="allow-once")
        assert answer == {"ok": True, "id": asked["id"], "decision": "allowed"}
        told = await _event(client, "exec.approval.resolved")
        assert (told["id"], told["decision"], told["resolvedBy"]) == (asked["id"], "allowed", "owner")
        assert (await waiting)["output"] == "hi\n"


async def test_who_may_not_control_the_session_cannot_answer_for_it(tmp_path: Path) -> None:
    async with served(tmp_path) as (gateway, _, others):
        waiting = asyncio.create_task(run(gateway, "true"))
        asked = await question(gateway)
        async with others("read-only-token") as reader:
            assert len((await reader.call("exec.approval.list"))["approvals"]) == 1
            with pytest.raises(RpcFailed, match="missing scope"):
                await reader.call("exec.approval.resolve", id=asked.approval_id, decision="allow-once")
        async with others("for-helper-token") as helper:
            assert (await helper.call("exec.approval.list"))["approvals"] == []
            with pytest.raises(RpcFailed, match="no open question"):
                await helper.call("exec.approval.resolve", id=asked.approval_id, decision="allow-once")
        reader_only = Operator("reader", ("operator.read",))
        with pytest.raises(Exception, match="right to approve"):
            await gateway.approvals.resolve(reader_only, asked.approval_id, "allow-once")
        assert not waiting.done()
        await gateway.approvals.resolve(OWNER, asked.approval_id, "deny")
        await waiting


async def test_the_question_of_a_deleted_session_is_gone_with_it(tmp_path: Path) -> None:
    async with rehearse(tmp_path, asking()) as gateway:
        await gateway.sessions.send(OWNER, "hook:1", 'call exec {"command": "true"}')
        asked = await question(gateway)
        await gateway.sessions.delete(OWNER, "hook:1")
        await until(lambda: not gateway.runner.busy)
        with pytest.raises(NotFound):
            await gateway.approvals.resolve(OWNER, asked.approval_id, "allow-once")


async def _event(client: Client, name: str) -> Any:
    async with asyncio.timeout(LIMIT_S):
        while (frame := await client.events.get()) is not None:
            if frame["event"] == name:
                return frame["payload"]
    raise AssertionError("the connection was lost")


async def test_the_question_reaches_the_chat_of_the_session_and_is_answered_there(
    tmp_path: Path,
) -> None:
    async with rehearse(tmp_path, asking()) as gateway:
        waiting = asyncio.create_task(run(gateway, "echo from the chat"))
        asked = await question(gateway)
        posts = (await gateway.sessions.queries.deliveries(OWNER, "main"))[1]
        assert [post.channel for post in posts] == ["webchat"]
        assert "echo from the chat" in posts[0].text
        assert f"/allow {asked.approval_id[:13]}" in posts[0].text
        writer = Operator("writer", ("operator.write",))
        with pytest.raises(NotAllowed):
            await gateway.sessions.send(writer, "main", f"/allow {asked.approval_id[:13]}")
        told = await say(gateway, f"/allow {asked.approval_id[:13]}")  # while the turn that asks is running
        assert told.reply == "Yes: echo from the chat"
        assert (await waiting)["status"] == "ok"
        with pytest.raises(NotFound):
            await say(gateway, f"/deny {asked.approval_id[:13]}")


async def test_a_question_says_who_really_asked_and_quotes_what_comes_from_outside(tmp_path: Path) -> None:
    """Also when an agent passed the request of a hook on to another session."""
    send = calls("sessions_send", sessionKey="agent:helper:main", message="please run it", timeoutSeconds=0)
    command = 'echo a\n\nAsked by: a person, signed in as "owner"'
    scripts = {"main": [send, "Passed on."], "agent:helper:main": [calls("exec", command=command), "Done."]}
    settings = asking() | {
        "agents": {"list": [{"id": "main"}, {"id": "helper"}]},
        "models": {"rehearsal": {"scripts": scripts}},
    }
    settings["tools"] |= {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}}
    async with rehearse(tmp_path, settings) as gateway:
        await gateway.sessions.create(OWNER, "agent:helper:main")
        helper = "agent:helper:main"
        await gateway.store.write(sessions.patch, helper, last_channel="webchat", last_to=helper)
        message = InboundMessage("go", provenance=briefings.from_hook("deploy"), plain=True)
        await gateway.sessions.send(Operator("hooks", ("operator.write",)), "main", message)
        asked = await question(gateway)
        assert payload(asked)["request"]["askedBy"] == {"kind": "hook", "name": "deploy"}
        post = ((await gateway.sessions.queries.deliveries(OWNER, helper))[1])[0].text
        lines = [line for line in post.splitlines() if line.startswith("Asked by: ")]
        assert lines == ['Asked by: from outside, the hook "deploy"']
        assert 'The message was: "please run it"' in post.splitlines()
        await gateway.approvals.resolve(OWNER, asked.approval_id, "deny")


@pytest.mark.promise("exec.names_the_least_trusted")
@pytest.mark.parametrize(
    ("mode", "before", "asked_for"),
    [("steer", [], "hold on\nrun it"), ("collect", ["Held."], "the weather?\nrun it")],
)
async def test_a_message_from_outside_does_not_hide_behind_a_person_it_was_merged_with(
    tmp_path: Path, mode: QueueMode, before: list[str], asked_for: str
) -> None:
    gate = Gate()
    settings = asking() | script(calls("hold"), *before, calls("exec", command="true"), "Done.")
    async with rehearse(tmp_path, settings, tools=(gate.tool,)) as gateway:
        await gateway.sessions.send(OWNER, "main", "hold on")
        await gate.reached.wait()
        if mode == "collect":
            await gateway.sessions.send(OWNER, "main", InboundMessage("the weather?", mode=mode))
        outside = InboundMessage("run it", provenance=briefings.from_hook("deploy"), plain=True, mode=mode)
        await gateway.sessions.send(Operator("hooks", ("operator.write",)), "main", outside)
        gate.open.set()
        asked = await question(gateway)
        request = payload(asked)["request"]
        assert request["askedBy"] == {"kind": "hook", "name": "deploy"}
        assert request["asked"] == asked_for
        await gateway.approvals.resolve(OWNER, asked.approval_id, "deny")


async def test_a_question_names_the_credential_of_the_person_who_asked(tmp_path: Path) -> None:
    async with rehearse(tmp_path, asking() | script(calls("exec", command="true"), "Done.")) as gateway:
        await gateway.sessions.send(Operator("ci", ("operator.write",)), "main", "go")
        asked = await question(gateway)
        assert payload(asked)["request"]["askedBy"] == {"kind": "person", "name": "ci"}
        await gateway.approvals.resolve(OWNER, asked.approval_id, "deny")


async def test_a_question_of_a_sub_agent_reaches_the_people_of_its_root(tmp_path: Path) -> None:
    settings = asking() | script(calls("exec", command="echo child"), "Done.", session="*")
    async with rehearse(tmp_path, settings) as gateway:
        await gateway.sessions.create(OWNER, "main")
        await gateway.store.write(sessions.patch, "agent:main:main", last_channel="webchat", last_to="main")
        await gateway.sessions.spawn_for(OWNER, "main", SpawnRequest(task="go"))
        asked = await question(gateway)
        assert ":subagent:" in asked.session_key
        assert "echo child" in ((await gateway.sessions.queries.deliveries(OWNER, "main"))[1])[0].text
        assert (await say(gateway, f"/deny {asked.approval_id[:13]}")).reply == "No: echo child"
