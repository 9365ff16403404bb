"""Methods about the gateway, and those that change a transcript without a turn."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import Gate
from tests.integration.test_wire import client_of
from tests.waiting import LIMIT_S

from hobnob.api.auth import owner_token
from hobnob.api.server import open_server
from hobnob.client import open_client
from hobnob.config import Settings
from hobnob.errors import RpcFailed
from hobnob.gateway import api_services
from hobnob.policy import Operator
from hobnob.sessions.slash_commands import COMMANDS
from hobnob.testing import OWNER, calls, rehearse, say, script

SECRET = "sk-this-is-a-secret-key-0123456789abcdef"


def words(page: Any) -> list[str]:
    return [
        m["content"] if isinstance(m["content"], str) else m["content"][0]["text"] for m in page["messages"]
    ]


async def test_status_tells_what_the_gateway_is_at(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        await client.ask("say hi")
        status = await client.call("status")
        assert (status["agents"], status["runningTurns"], status["clients"]) == (["main"], 0, 1)
        assert [row["key"] for row in status["sessions"]["recent"]] == ["agent:main:main"]
        health = await client.call("health")
        assert health["sessions"]["recent"][0]["key"] == "agent:main:main"


async def test_the_settings_can_be_read_without_their_secrets(tmp_path: Path) -> None:
    providers = {"p": {"baseUrl": "http://user:pw@127.0.0.1:1", "apiKey": SECRET, "models": [{"id": "m"}]}}
    settings = {"gateway": {"port": 0, "auth": {"token": SECRET}}, "models": {"providers": providers}}
    async with client_of(tmp_path, settings) as client:
        found = await client.call("config.get")
        assert found["config"]["models"]["providers"]["p"]["models"] == [{"id": "m"}]
        assert found["readOnly"] is True
        rows = {row["path"]: row for row in found["settings"]}
        assert rows["models.providers.p.models[0].id"]["value"] == "m"
        assert rows["session.agentToAgent.maxHops"]["origin"] == "default"
        assert SECRET not in json.dumps(found)
        assert "pw@" not in json.dumps(found)


async def test_an_agent_is_named_by_itself_or_by_a_session(tmp_path: Path) -> None:
    settings = {"agents": {"list": [{"id": "main"}, {"id": "helper", "name": "Helga"}]}}
    async with client_of(tmp_path, settings) as client:
        assert await client.call("agent.identity.get") == {"agentId": "main", "name": "main"}
        named = await client.call("agent.identity.get", agentId="helper")
        assert named == await client.call("agent.identity.get", sessionKey="agent:helper:main")
        assert named["name"] == "Helga"
        with pytest.raises(RpcFailed, match="There is no agent 'nobody'"):
            await client.call("agent.identity.get", agentId="nobody")


async def test_a_page_opens_a_chat_with_one_call(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        empty = await client.call("chat.startup", sessionKey="main")
        assert empty["messages"] == []
        await client.ask("say hi")
        opened = await client.call("chat.startup", sessionKey="main")
        assert words(opened) == ["say hi", "hi"]
        assert opened["sessionInfo"]["openTurns"] == 0
        chosen = await client.call("chat.metadata")
        assert [c["name"] for c in chosen["commands"]] == list(COMMANDS)
        assert "rehearsal/rehearsal" in [m["name"] for m in chosen["models"]]
        described = await client.call("sessions.describe", key="main")
        assert described["session"]["agentId"] == "main"


async def test_a_line_is_put_into_a_transcript_without_asking_anybody(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        await client.ask("say hi")
        done = await client.call("chat.inject", sessionKey="main", message="The build is red.", label="ci")
        page = await client.call("chat.history", sessionKey="main")
        assert words(page)[-1] == "[ci]\n\nThe build is red."
        assert (page["messages"][-1]["role"], done["messageSeq"]) == ("assistant", 3)
        with pytest.raises(RpcFailed, match="There is no session"):
            await client.call("chat.inject", sessionKey="hook:none", message="x")


async def test_the_older_part_of_a_conversation_is_summarised_and_the_answer_says_what_happened(
    tmp_path: Path,
) -> None:
    async with client_of(tmp_path) as client:
        for number in range(5):
            await client.ask(f"say {number}")
        short = await client.call("sessions.compact", key="main", maxLines=100)
        assert (short["compacted"], short["reason"]) == (False, "there is nothing to summarise yet")
        done = await client.call("sessions.compact", key="main", maxLines=5, focus="numbers")
        assert (done["compacted"], done["covers"], done["kept"]) == (True, [1, 8], 4)  # from an input on
        assert done["summary"].startswith("[rehearsal] Summary of") and "failed" not in done
        assert len((await client.call("chat.history", sessionKey="main"))["messages"]) == 10 + 2 + 3
        assert (await client.ask("say next")).text == "next"


async def test_a_summary_that_fails_is_answered_with_the_reason(tmp_path: Path) -> None:
    async with client_of(tmp_path, script({"error": "no credit"}, session="compaction")) as client:
        for number in range(5):
            await client.ask(f"say {number}")
        done = await client.call("sessions.compact", key="main")
        assert done["compacted"] and "no credit" in done["failed"] and "no credit" in done["reason"]
        assert "could not be summarised and are left out" in done["summary"]


async def test_a_compaction_waits_for_the_running_turn_and_can_be_waited_for(tmp_path: Path) -> None:
    gate = Gate()
    async with client_of(tmp_path, script(calls("hold"), "x"), tools=[gate.tool]) as client:
        await client.call("chat.send", sessionKey="main", message="go", idempotencyKey="k")
        await gate.reached.wait()
        asked = await client.call("sessions.compact", key="main", timeoutMs=0)
        assert (asked["compacted"], asked["status"]) == (False, "running")
        gate.open.set()
        ended = await client.call("agent.wait", runId=asked["runId"], timeoutMs=60_000)
        assert ended["status"] == "ok"


async def test_what_sessions_cost_is_told_by_day_and_session(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        await client.ask("say hi")
        await client.ask("say hi", "hook:1")
        used = await client.call("sessions.usage")
        assert {row["key"] for row in used["sessions"]} == {"agent:main:main", "agent:main:hook:1"}
        assert used["totals"]["calls"] == 2
        one = await client.call("sessions.usage", key="main")
        assert (
            one["totals"]["totalTokens"] == one["sessions"][0]["totalTokens"] < used["totals"]["totalTokens"]
        )
        before = await client.call("sessions.usage", startDate="2020-01-01", endDate="2020-12-31")
        assert (before["sessions"], before["totals"]) == ([], {})
        with pytest.raises(RpcFailed, match="startDate"):
            await client.call("sessions.usage", startDate="2020-02-31")


async def test_usage_of_other_agents_is_not_told(tmp_path: Path) -> None:
    settings = {"agents": {"list": [{"id": "main"}, {"id": "helper"}]}}
    narrow = Operator("n", ("operator.read",), ("helper",))
    async with rehearse(tmp_path, settings) as gateway:
        await say(gateway, "say hi")
        always = "2000-01-01", "2999-01-01"
        assert len((await gateway.sessions.queries.usage(OWNER, *always))[1]) == 1
        assert await gateway.sessions.queries.usage(narrow, *always) == (None, [])


async def test_steering_ends_what_runs_and_goes_on_with_the_new_message(tmp_path: Path) -> None:
    gate = Gate()
    async with client_of(tmp_path, script(calls("hold"), "Second."), tools=[gate.tool]) as client:
        await client.call("chat.send", sessionKey="main", message="first", idempotencyKey="a")
        await gate.reached.wait()
        steered = await client.call("sessions.steer", key="main", message="second", idempotencyKey="b")
        assert steered["runId"] == "b"
        assert (await client.wait("a"))["outcome"] == "cancelled"
        gate.open.set()
        assert (await client.wait("b"))["outcome"] == "ok"


async def test_a_message_for_a_conversation_that_is_over_is_refused(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        await client.ask("say hi")
        old = (await client.call("sessions.resolve", key="main"))["sessionId"]
        sending = {"sessionKey": "main", "message": "say more", "sessionId": old}
        assert (await client.call("chat.send", **sending, idempotencyKey="1"))["status"] == "started"
        await client.wait("1")
        await client.call("sessions.reset", key="main")
        with pytest.raises(RpcFailed, match="has a new transcript by now"):
            await client.call("chat.send", **sending, idempotencyKey="2")


async def test_archived_sessions_are_listed_alone_or_among_the_others(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        for key in ("hook:1", "hook:2", "hook:3"):
            await client.ask("say hi", key)
        await client.call("sessions.patch", key="hook:2", archived=True)

        async def listed(**params: Any) -> list[str]:
            page = await client.call("sessions.list", **params)
            return [row["key"].rsplit(":", 1)[1] for row in page["sessions"]]

        assert await listed() == ["3", "1"]
        assert await listed(archived=True) == ["2"]
        assert sorted(await listed(archived="all")) == ["1", "2", "3"]
        await client.call("sessions.patch", key="hook:2", archived=False)
        assert sorted(await listed()) == ["1", "2", "3"]
        with pytest.raises(RpcFailed, match="a new transcript"):
            await client.call("sessions.patch", key="hook:2", label="x", expectedSessionId="other")


async def test_children_of_a_session_are_listed(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        await client.ask("say hi")
        receipts = [
            await client.call("sessions.spawn", key="main", task=f"say {n}", label=f"child {n}")
            for n in range(3)
        ]
        async with asyncio.timeout(LIMIT_S):  # a list moves while its sessions are at work
            while [e for e in (await client.call("exchanges.list"))["exchanges"] if e["state"] == "open"]:
                await asyncio.sleep(0.02)
        first = await client.call("sessions.list", spawnedBy="main", limit=2)
        rest = await client.call("sessions.list", spawnedBy="main", limit=2, cursor=first["nextCursor"])
        found = [row["key"] for row in first["sessions"] + rest["sessions"]]
        assert sorted(found) == sorted(r["childSessionKey"] for r in receipts)
        assert rest["hasMore"] is False


async def test_the_log_can_be_read_and_holds_no_message_text(tmp_path: Path) -> None:
    from hobnob import logs

    logs.configure(as_json=True)
    try:
        async with rehearse(tmp_path, {"gateway": {"port": 0}}) as gateway:
            gateway.store.watch(logs.log_changes)
            turn = await say(gateway, "say a secret word")
            await asyncio.sleep(0)
            lines, last, _ = logs.recent.since(None, 100, 100_000)
            told = [json.loads(line) for line in lines]
            ended = [line for line in told if line["event"] == "turn ended"]
            assert [line["run"] for line in ended] == [turn.turn_id]
            assert ended[0]["session"] == "agent:main:main"
            assert "secret word" not in "".join(lines)
            assert logs.recent.since(last, 100, 100_000) == ([], last, False)
            assert logs.recent.since(None, 1, 100_000)[0] == lines[-1:]
            place = last - len(lines)
            for line in lines:  # one after the other, none left out
                found, place, _ = logs.recent.since(place, 1, 10)
                assert found == [line]
    finally:
        import logging

        logging.getLogger().handlers.clear()
        await asyncio.sleep(0)


async def test_the_log_line_of_a_failed_turn_says_why(tmp_path: Path) -> None:
    from hobnob import logs

    logs.configure(as_json=True)
    try:
        async with rehearse(tmp_path, script({"error": "The model is asleep."})) as gateway:
            gateway.store.watch(logs.log_changes)
            turn = await say(gateway, "go")
            await asyncio.sleep(0)
            lines, _, _ = logs.recent.since(None, 100, 100_000)
            [ended] = [line for line in map(json.loads, lines) if line.get("run") == turn.turn_id]
            assert (ended["event"], ended["level"], ended["error"]) == ("turn ended", "warning", turn.error)
            assert "asleep" in ended["error"]
    finally:
        import logging

        logging.getLogger().handlers.clear()


async def test_what_is_about_the_whole_gateway_is_not_for_a_token_of_some_agents(tmp_path: Path) -> None:
    narrow = {
        "name": "n",
        "token": "admin-of-helper",
        "scopes": ["operator.admin"],
        "agents": ["helper"],
    }
    settings = {
        "gateway": {"port": 0, "auth": {"tokens": [narrow]}},
        "agents": {"list": [{"id": "main"}, {"id": "helper"}]},
    }
    async with rehearse(tmp_path, settings) as gateway:
        services = api_services(gateway)
        await say(gateway, "say hi")
        async with open_server(services) as url, open_client(url, "admin-of-helper") as helper:
            calls_for_all: list[tuple[str, Any]] = [
                ("config.get", {}),
                ("logs.tail", {}),
                ("device.pair.list", {}),
                ("device.pair.approve", {"requestId": "x"}),
                ("device.pair.reject", {"requestId": "x"}),
                ("device.pair.remove", {"deviceId": "x"}),
                ("device.token.rotate", {"deviceId": "x"}),
                ("device.token.revoke", {"deviceId": "x"}),
            ]
            for method, params in calls_for_all:
                with pytest.raises(RpcFailed, match="a credential for all agents"):
                    await helper.call(method, **params)
            seen = [helper.hello, await helper.call("status"), await helper.call("health")]
            seen += [await helper.call("agents.list"), await helper.call("system-presence")]
            listed = json.dumps(
                [part if part is not helper.hello else part["snapshot"]["presence"] for part in seen]
            )
            assert "agent:main" not in listed
            assert [agent["id"] for agent in seen[3]["agents"]] == ["helper"]


async def test_a_question_about_a_session_is_answered_while_a_turn_runs(tmp_path: Path) -> None:
    gate = Gate()
    async with client_of(tmp_path, script(calls("hold"), "Done."), tools=[gate.tool]) as client:
        await client.call("chat.send", sessionKey="main", message="go", idempotencyKey="a")
        await gate.reached.wait()
        told = await client.ask("/status", idempotencyKey="b")
        assert told.run_id == "b"
        assert "1 turn running" in told.text
        gate.open.set()
        await client.wait("a")
        page = await client.call("chat.history", sessionKey="main")
        assert [m["role"] for m in page["messages"]] == ["user", "assistant", "toolResult", "assistant"]


async def test_a_key_of_one_credential_is_not_one_of_another(tmp_path: Path) -> None:
    tokens = [
        {"name": "ci", "token": "the-token-of-the-ci", "scopes": ["operator.write"], "agents": ["helper"]}
    ]
    settings = {
        "gateway": {"port": 0, "auth": {"tokens": tokens}},
        "agents": {"list": [{"id": "main"}, {"id": "helper"}]},
    }
    async with rehearse(tmp_path, settings) as gateway, open_server(api_services(gateway)) as url:
        async with open_client(url, owner_token(gateway.config)) as owner:
            await owner.ask("say secret", idempotencyKey="k")
        async with open_client(url, "the-token-of-the-ci") as ci:
            with pytest.raises(RpcFailed, match="not for sessions of agent"):
                await ci.ask("say secret", idempotencyKey="k")


@pytest.mark.parametrize("names", [["owner"], ["hooks"], ["a", "a"]])
def test_credentials_have_names_of_their_own(tmp_path: Path, names: list[str]) -> None:
    tokens = [{"name": n, "token": f"token-{i}-0123456789", "scopes": []} for i, n in enumerate(names)]
    with pytest.raises(ValueError, match=r"name"):
        Settings.model_validate({"gateway": {"auth": {"tokens": tokens}}})
