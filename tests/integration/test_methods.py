"""The RPC methods for sessions and exchanges, over a real socket."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LIMIT_S

from hobnob.api.auth import owner_token
from hobnob.api.rpc import METHODS
from hobnob.api.server import open_server
from hobnob.client import Client, open_client
from hobnob.errors import RpcFailed
from hobnob.gateway import api_services
from hobnob.testing import calls, rehearse
from hobnob.tools import Context, Tool, tool

READ, WRITE, ADMIN = "operator.read", "operator.write", "operator.admin"
SCOPES = {
    "channels.capabilities": READ,
    "channels.logout": ADMIN,
    "channels.messages": READ,
    "channels.start": ADMIN,
    "channels.status": READ,
    "channels.stop": ADMIN,
    "mcp.grants.create": WRITE,
    "mcp.grants.list": READ,
    "mcp.grants.revoke": WRITE,
    "pairing.approve": "operator.pairing",
    "pairing.list": "operator.pairing",
    "pairing.revoke": "operator.pairing",
    "send": WRITE,
    "agent": WRITE,
    "agent.identity.get": READ,
    "agent.wait": WRITE,
    "agents.list": READ,
    "chat.abort": WRITE,
    "chat.deliveries": READ,
    "chat.history": READ,
    "chat.inject": ADMIN,
    "chat.metadata": READ,
    "chat.retry": WRITE,
    "chat.send": WRITE,
    "chat.startup": READ,
    "budgets.list": READ,
    "config.get": READ,
    "config.reload": ADMIN,
    "costs": READ,
    "cron.add": ADMIN,
    "cron.get": READ,
    "cron.list": READ,
    "cron.remove": ADMIN,
    "cron.run": ADMIN,
    "cron.runs": READ,
    "cron.status": READ,
    "cron.update": ADMIN,
    "wake": WRITE,
    "device.pair.approve": "operator.pairing",
    "device.pair.list": "operator.pairing",
    "device.pair.reject": "operator.pairing",
    "device.pair.remove": "operator.pairing",
    "device.token.revoke": "operator.pairing",
    "device.token.rotate": "operator.pairing",
    "exchanges.get": READ,
    "exchanges.list": READ,
    "exec.approval.list": READ,
    "exec.approval.resolve": "operator.approvals",
    "exchanges.timeline": READ,
    "exchanges.traffic": READ,
    "gateways.drain": "operator.admin",
    "gateways.list": READ,
    "gateways.remove": "operator.admin",
    "health": READ,
    "logs.tail": READ,
    "models.list": READ,
    "policy.explain": READ,
    "node.describe": READ,
    "node.event": None,
    "node.invoke": WRITE,
    "node.invoke.cancel": WRITE,
    "node.invoke.progress": None,
    "node.invoke.result": None,
    "node.list": READ,
    "node.pair.approve": "operator.pairing",
    "node.pair.list": "operator.pairing",
    "node.pair.reject": "operator.pairing",
    "node.pair.remove": "operator.pairing",
    "node.pair.request": None,
    "node.pair.verify": "operator.pairing",
    "node.pluginTools.update": None,
    "node.rename": "operator.pairing",
    "node.runnerInventory.update": None,
    "node.skills.update": None,
    "policy.matrix": READ,
    "sessions.wait": WRITE,
    "web.login.start": ADMIN,
    "web.login.wait": ADMIN,
    "sessions.abort": WRITE,
    "sessions.archive": WRITE,
    "sessions.cleanup": ADMIN,
    "sessions.compact": ADMIN,
    "sessions.create": WRITE,
    "sessions.delete": ADMIN,
    "sessions.describe": READ,
    "sessions.get": READ,
    "sessions.list": READ,
    "sessions.messages.subscribe": READ,
    "sessions.messages.unsubscribe": READ,
    "sessions.patch": WRITE,
    "sessions.preview": READ,
    "sessions.reset": ADMIN,
    "sessions.resolve": READ,
    "sessions.restore": WRITE,
    "sessions.search": READ,
    "sessions.send": WRITE,
    "sessions.spawn": WRITE,
    "sessions.status": READ,
    "sessions.steer": WRITE,
    "sessions.subscribe": READ,
    "sessions.unsubscribe": READ,
    "sessions.usage": READ,
    "status": READ,
    "system-presence": READ,
    "tools.catalog": READ,
    "tools.effective": READ,
    "tools.invoke": WRITE,
}
TOKENS = [
    {"name": "reader", "token": "read-only-token", "scopes": [READ]},
    {"name": "writer", "token": "write-only-token", "scopes": [WRITE]},
    {"name": "helper", "token": "for-helper-token", "scopes": [WRITE], "agents": ["helper"]},
]


@asynccontextmanager
async def served(
    home: Path, scripts: dict[str, Any] | None = None, tools: tuple[Tool, ...] = ()
) -> AsyncIterator[tuple[Client, Callable[[str], Any]]]:
    """A client of the owner, and how to get one with another token."""
    settings = {
        "gateway": {"port": 0, "auth": {"tokens": TOKENS}},
        "agents": {"list": [{"id": "main", "subagents": {"allowAgents": ["*"]}}, {"id": "helper"}]},
        "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
        "models": {"rehearsal": {"scripts": scripts or {}}},
    }
    async with (
        rehearse(home, settings, tools=tools) as gateway,
        open_server(api_services(gateway)) as url,
        open_client(url, owner_token(gateway.config)) as client,
    ):
        yield client, lambda token: open_client(url, token)


async def say(client: Client, text: str, key: str = "main") -> Any:
    return await client.call("agent", message=text, sessionKey=key, idempotencyKey=f"{key} {text}"[:256])


async def posted(client: Client) -> Any:
    """The next message to people that the client hears of."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            frame = await client.events.get()
            assert frame is not None
            if frame["event"] == "chat" and "deliveryId" in frame["payload"]:
                return frame["payload"]


def text(message: Any) -> Any:
    content = message["content"]
    return content if isinstance(content, str) else content[0].get("text")


def test_every_method_has_the_scope_that_was_decided_for_it() -> None:
    assert {name: method.scope for name, method in METHODS.items()} == SCOPES


@pytest.mark.parametrize("method", sorted(name for name, scope in SCOPES.items() if scope != READ))
@pytest.mark.promise("access.read")
async def test_a_token_that_may_only_read_changes_nothing(tmp_path: Path, method: str) -> None:
    async with served(tmp_path) as (_, others), others("read-only-token") as reader:
        of_nodes = SCOPES[method] is None  # methods that only nodes may call
        with pytest.raises(RpcFailed, match="unauthorized role" if of_nodes else "missing scope") as refused:
            await reader.call(method)
        assert of_nodes or refused.value.reason == "MISSING_SCOPE"


@pytest.mark.promise("access.write_implies_read")
@pytest.mark.promise("access.narrower_tokens")
async def test_a_token_that_may_write_sends_but_does_not_control(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, others), others("write-only-token") as writer:
        sent = await writer.call("chat.send", sessionKey="main", message="say hi", idempotencyKey="k")
        assert sent == {"runId": "k", "status": "started"}
        assert (await writer.call("sessions.list"))["count"] == 1
        await writer.call("sessions.patch", key="main", label="mine")
        await writer.call("sessions.create", key="notes")
        for method, params in (
            ("sessions.patch", {"key": "main", "sendPolicy": "deny"}),
            ("sessions.reset", {"key": "main"}),
            ("sessions.delete", {"key": "notes"}),
        ):
            with pytest.raises(RpcFailed, match=r"operator\.admin"):
                await writer.call(method, **params)


@pytest.mark.promise("access.tokens_of_some_agents")
@pytest.mark.promise("policy.decides_websocket")
async def test_a_token_for_one_agent_is_told_of_that_agents_sessions_only(tmp_path: Path) -> None:
    async with served(tmp_path) as (owner, others), others("for-helper-token") as helper:
        await say(owner, "remember the milk")
        await say(owner, "remember the eggs", "agent:helper:main")
        listed = await helper.call("sessions.list")
        assert [row["key"] for row in listed["sessions"]] == ["agent:helper:main"]
        assert listed["visibility"]["restricted"] is True
        assert (await helper.call("sessions.search", query="milk"))["count"] == 0
        assert (await helper.call("sessions.search", query="eggs"))["count"] == 2
        for method, params in (
            ("sessions.get", {"key": "main"}),
            ("chat.history", {"sessionKey": "main"}),
            ("chat.deliveries", {"sessionKey": "main"}),
            ("sessions.status", {"key": "main"}),
            ("sessions.send", {"key": "main", "message": "hi"}),
            ("sessions.spawn", {"key": "main", "task": "x"}),
            ("sessions.abort", {"key": "main"}),
        ):
            with pytest.raises(RpcFailed, match="not for sessions of agent 'main'"):
                await helper.call(method, **params)
        preview = await helper.call("sessions.preview", keys=["main", "agent:helper:main"])
        assert [p["status"] for p in preview["previews"]] == ["error", "ok"]


@pytest.mark.promise("keys.gateway_shows_full_keys")
async def test_sessions_are_listed_page_after_page_newest_first(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        for name in ("a", "b", "c"):
            await say(client, "say hi", f"hook:{name}")
        first = await client.call("sessions.list", limit=2)
        assert [row["key"] for row in first["sessions"]] == ["agent:main:hook:c", "agent:main:hook:b"]
        assert (first["count"], first["hasMore"], first["path"]) == (2, True, "(multiple)")
        assert first["defaults"]["modelProvider"] == "rehearsal"
        assert first["sessions"][0]["agentId"] == "main"
        rest = await client.call("sessions.list", limit=2, cursor=first["nextCursor"])
        assert [row["key"] for row in rest["sessions"]] == ["agent:main:hook:a"]
        assert "nextCursor" not in rest


async def test_a_list_can_be_narrowed_and_show_the_last_words(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        await say(client, "say hi", "hook:a")
        await say(client, "say ho")
        only = await client.call("sessions.list", kinds=["hook"], includeLastMessage=True)
        assert [(r["key"], r["lastMessagePreview"]) for r in only["sessions"]] == [
            ("agent:main:hook:a", "hi")
        ]
        assert "messages" not in only["sessions"][0]
        with_messages = await client.call("sessions.list", search="HOOK", messageLimit=5)
        assert [text(m) for m in with_messages["sessions"][0]["messages"]] == ["say hi", "hi"]
        assert (await client.call("sessions.list", agentId="helper"))["count"] == 0


@pytest.mark.promise("keys.key_or_session_id")
async def test_a_session_is_found_by_key_id_or_label(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        made = await client.call("sessions.create", key="hook:x", label="Mine")
        expected = {"ok": True, "key": "agent:main:hook:x", "sessionId": made["sessionId"]}
        assert await client.call("sessions.resolve", key="hook:x") == expected
        assert await client.call("sessions.resolve", sessionId=made["sessionId"]) == expected
        assert await client.call("sessions.resolve", label="Mine") == expected


@pytest.mark.parametrize(
    ("params", "says", "reason"),
    [
        ({}, "Give one of", "input.bad"),
        ({"key": "main", "label": "x"}, "Give one of", "input.bad"),
        ({"key": "main"}, "There is no session agent:main:main", "session.not_found"),
        ({"label": "nobody"}, "label 'nobody'", "session.not_found"),
        ({"key": "hook:.."}, "path segments", "key.bad"),
        ({"kee": "main"}, "did you mean key", "input.bad"),
    ],
)
async def test_what_does_not_name_a_session_is_refused_by_a_reason(
    tmp_path: Path, params: Any, says: str, reason: str
) -> None:
    async with served(tmp_path) as (client, _):
        with pytest.raises(RpcFailed, match=says) as refused:
            await client.call("sessions.resolve", **params)
        assert refused.value.reason == reason


@pytest.mark.parametrize("method", ["sessions.list", "exchanges.list"])
async def test_a_cursor_that_no_list_gave_out_is_refused(tmp_path: Path, method: str) -> None:
    async with served(tmp_path) as (client, _):
        with pytest.raises(RpcFailed, match="cursor"):
            await client.call(method, cursor="made-up")


async def test_a_transcript_is_read_with_and_without_results_of_tools(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        await say(client, "list agents")
        whole = await client.call("chat.history", sessionKey="main")
        assert [m["role"] for m in whole["messages"]] == ["user", "assistant", "toolResult", "assistant"]
        assert whole["thinkingLevel"] == "off"
        short = await client.call("sessions.get", key="main", includeTools=False, limit=2)
        assert [m["role"] for m in short["messages"]] == ["assistant", "assistant"]
        before = await client.call("sessions.get", key="main", includeTools=False, cursor=short["nextCursor"])
        assert [text(m) for m in before["messages"]] == ["list agents"]


async def test_a_session_that_nobody_used_yet_has_an_empty_history(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        assert (await client.call("chat.history", sessionKey="main"))["messages"] == []
        assert (await client.call("sessions.get", key="main"))["messages"] == []


async def test_previews_show_the_last_words_of_several_sessions(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        await say(client, "say " + "long " * 100)
        await client.call("sessions.create", key="hook:empty")
        wanted = ["main", "hook:empty", "hook:missing", "hook:.."]
        found = await client.call("sessions.preview", keys=wanted, limit=1, maxChars=20)
        assert [p["status"] for p in found["previews"]] == ["ok", "empty", "missing", "error"]
        assert found["previews"][0]["items"] == [{"role": "assistant", "text": ("long " * 4)}]


async def test_a_new_session_can_begin_with_a_message(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        made = await client.call("sessions.create", agentId="helper", message="say hi")
        assert made["key"].startswith("agent:helper:dashboard:")
        assert (made["runStarted"], made["status"]) == (True, "started")
        waited = await client.call("agent.wait", runId=made["runId"])
        assert waited["result"]["payloads"][0]["text"] == "hi"


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"key": "main"}, "session.exists"),
        ({"key": "hook:b", "label": "Taken"}, "label.taken"),
        ({"key": "agent:main:subagent:1"}, "input.bad"),
        ({"key": "agent:ghost:main"}, "agent.unknown"),
        ({"key": "hook:b", "model": "no/such"}, "model.unknown"),
    ],
)
async def test_a_session_that_cannot_be_made_is_refused(tmp_path: Path, params: Any, reason: str) -> None:
    async with served(tmp_path) as (client, _):
        await client.call("sessions.create", key="main", label="Taken")
        with pytest.raises(RpcFailed) as refused:
            await client.call("sessions.create", **params)
        assert refused.value.reason == reason


async def test_a_wait_on_an_ended_run_returns_its_reply_also_after_a_restart(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        accepted = await client.call("chat.send", sessionKey="main", message="say hi", idempotencyKey="r")
        waited = await client.call("agent.wait", runId=accepted["runId"])
        assert (waited["status"], waited["reply"]) == ("ok", "hi")
    async with served(tmp_path) as (client, _):
        assert (await client.call("agent.wait", runId="r"))["reply"] == "hi"


async def test_the_same_key_gives_the_same_run(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        params = {"sessionKey": "main", "message": "say hi", "idempotencyKey": "mine"}
        assert await client.call("chat.send", **params) == {"runId": "mine", "status": "started"}
        await client.call("agent.wait", runId="mine")
        assert await client.call("chat.send", **params) == {"runId": "mine", "status": "ok"}
        assert len((await client.call("chat.history", sessionKey="main"))["messages"]) == 2


async def test_sessions_send_wants_a_session_that_is_there(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        with pytest.raises(RpcFailed, match="There is no session agent:main:main"):
            await client.call("sessions.send", key="main", message="hi")
        await client.call("sessions.create", key="main")
        sent = await client.call("sessions.send", key="main", message="say hi")
        assert (sent["status"], sent["sessionKey"]) == ("started", "agent:main:main")


async def test_an_announcement_reaches_whoever_listens_and_stays_readable(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, others), others("for-helper-token") as helper:
        await say(client, "say morning", "agent:helper:main")
        await helper.call("sessions.messages.subscribe", key="agent:helper:main")
        await say(client, "ask helper: what is 6 * 7?")
        chat = await posted(client)
        assert (chat["sessionKey"], chat["state"]) == ("agent:helper:main", "final")
        assert chat["message"]["role"] == "assistant"
        assert chat["runId"] == f"post-{chat['deliveryId']}"
        kept = await client.call("chat.deliveries", sessionKey="agent:helper:main")
        (delivery,) = kept["deliveries"]
        assert (delivery["id"], delivery["channel"]) == (chat["deliveryId"], "webchat")
        assert delivery["exchangeId"] == chat["exchangeId"]
        assert delivery["text"] == text(chat["message"])
        assert (await posted(helper))["deliveryId"] == chat["deliveryId"]


@pytest.mark.promise("policy.decides_events")
async def test_a_spawn_is_answered_at_once_and_reports_to_its_session(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, others), others("for-helper-token") as helper:
        await say(client, "say hi")
        spawned = await client.call("sessions.spawn", key="main", task="what is 3 + 4?", agentId="helper")
        assert spawned["status"] == "accepted"
        assert spawned["childSessionKey"].startswith("agent:helper:subagent:")
        assert spawned["model"] == "rehearsal/rehearsal"
        chat = await posted(client)
        assert chat["sessionKey"] == "agent:main:main"
        assert "Result: 3 + 4 = 7" in text(chat["message"])
        heard = [helper.events.get_nowait() for _ in range(helper.events.qsize())]
        assert [e for e in heard if e and "deliveryId" in e["payload"]] == []  # main's chat is not theirs


async def test_the_same_spawn_asked_for_again_is_the_same(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        await client.call("sessions.create", key="main")
        params = {"key": "main", "task": "say hi", "idempotencyKey": "once"}
        first = await client.call("sessions.spawn", **params)
        assert await client.call("sessions.spawn", **params) == first


async def test_what_a_session_does_can_be_ended(tmp_path: Path) -> None:
    here = asyncio.Event()

    @tool()
    async def hold(context: Context) -> str:
        """Wait."""
        here.set()
        await asyncio.Event().wait()
        return ""

    async with served(tmp_path, {"main": [calls("hold")]}, (hold,)) as (client, _):
        sent = await client.call("chat.send", sessionKey="main", message="go", idempotencyKey="k")
        await here.wait()
        ended = await client.call("sessions.abort", key="main")
        assert (ended["abortedRunId"], ended["status"]) == (sent["runId"], "aborted")
        assert (await client.call("agent.wait", runId="k"))["outcome"] == "cancelled"
        again = await client.call("sessions.abort", key="main", descendants=True)
        assert (again["abortedRunId"], again["status"]) == (None, "no-active-run")


@pytest.mark.promise("send_policy.set_by_patch")
async def test_a_patch_changes_what_it_names_and_null_takes_back(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        await client.call("sessions.create", key="main", label="Old")
        done = await client.call("sessions.patch", key="main", sendPolicy="deny", thinkingLevel="high")
        assert done["resolved"] == {"modelProvider": "rehearsal", "model": "rehearsal"}
        assert (done["entry"]["label"], done["entry"]["sendPolicy"]) == ("Old", "deny")
        back = await client.call("sessions.patch", key="main", sendPolicy=None, label=None)
        assert "sendPolicy" not in back["entry"]
        assert "label" not in back["entry"]
        assert back["entry"]["thinkingLevel"] == "high"


@pytest.mark.promise("send_policy.code", "send_policy.holds_for_chat_send", "send_policy.holds_for_agent")
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("chat.send", {"sessionKey": "main", "idempotencyKey": "k"}),
        ("sessions.send", {"key": "main"}),
        ("agent", {"sessionKey": "main", "idempotencyKey": "k"}),
    ],
)
async def test_nothing_is_sent_into_a_session_that_takes_nothing(
    tmp_path: Path, method: str, params: Any
) -> None:
    async with served(tmp_path) as (client, _):
        await client.call("sessions.create", key="main")
        await client.call("sessions.patch", key="main", sendPolicy="deny")
        with pytest.raises(RpcFailed, match="denied") as refused:
            await client.call(method, message="hi", **params)
        assert refused.value.reason == "send_policy.denied"
        assert (await client.call("sessions.get", key="main"))["messages"] == []


@pytest.mark.promise("access.no_lineage_from_outside")
@pytest.mark.parametrize("method", ["sessions.create", "sessions.patch", "sessions.send", "agent"])
@pytest.mark.parametrize("name", ["spawnedBy", "spawnDepth", "lineage", "rootKey"])
async def test_nobody_outside_says_who_spawned_a_session(tmp_path: Path, method: str, name: str) -> None:
    async with served(tmp_path) as (client, _):
        with pytest.raises(RpcFailed, match=f"there is no parameter {name}"):
            await client.call(method, **{name: "agent:main:main"})


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({}, "Name what to change"),
        ({"sendPolicy": "maybe"}, "sendPolicy"),
        ({"model": "no/such"}, "no provider 'no'"),
        ({"thinkingLevel": "deep"}, "no thinking level 'deep'"),
        ({"spawnedBy": "agent:main:main"}, "there is no parameter spawnedBy"),
    ],
)
async def test_a_patch_that_makes_no_sense_is_refused(tmp_path: Path, params: Any, says: str) -> None:
    async with served(tmp_path) as (client, _):
        await client.call("sessions.create", key="main")
        with pytest.raises(RpcFailed, match=says):
            await client.call("sessions.patch", key="main", **params)


async def test_a_reset_begins_anew_and_keeps_the_old_transcript_readable(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        await say(client, "remember the milk")
        before = await client.call("sessions.resolve", key="main")
        after = await client.call("sessions.reset", key="main")
        assert after["entry"]["sessionId"] != before["sessionId"]
        assert (await client.call("sessions.get", key="main"))["messages"] == []
        old = await client.call("sessions.get", key=before["sessionId"])
        assert text(old["messages"][0]) == "remember the milk"


@pytest.mark.promise("archive.hidden")
@pytest.mark.promise("archive.readable")
@pytest.mark.promise("archive.restorable")
async def test_an_archived_session_is_not_listed_and_takes_nothing_until_restored(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        await say(client, "say hi")
        await client.call("sessions.archive", key="main")
        assert (await client.call("sessions.list"))["count"] == 0
        (row,) = (await client.call("sessions.list", archived=True))["sessions"]
        assert (row["key"], row["archived"]) == ("agent:main:main", True)
        assert (await client.call("sessions.search", query="hi"))["count"] == 0
        assert len((await client.call("sessions.get", key="main"))["messages"]) == 2
        with pytest.raises(RpcFailed, match="archived") as refused:
            await client.call("sessions.send", key="main", message="hi")
        assert refused.value.reason == "session.archived"
        await client.call("sessions.restore", key="main")
        assert (await client.call("sessions.list"))["count"] == 1


async def test_a_deleted_session_is_gone_with_what_was_said(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        await say(client, "remember the milk", "notes")
        with pytest.raises(RpcFailed, match="transcript is deleted with its session"):
            await client.call("sessions.delete", key="notes", deleteTranscript=False)
        gone = await client.call("sessions.delete", key="notes")
        assert gone == {"ok": True, "key": "agent:main:notes", "deleted": True, "archived": []}
        assert (await client.call("sessions.search", query="milk"))["count"] == 0
        with pytest.raises(RpcFailed, match="There is no session"):
            await client.call("sessions.status", key="notes")


async def test_a_main_session_is_not_deleted(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        await say(client, "remember the milk")
        with pytest.raises(RpcFailed, match="main session agent:main:main cannot be deleted") as refused:
            await client.call("sessions.delete", key="main")
        assert "sessions.reset" in str(refused.value.fix)
        assert (await client.call("sessions.search", query="milk"))["count"] == 2


async def test_an_exchange_is_found_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        await say(client, "say hi", "agent:helper:main")
        for number in (1, 2):
            await say(client, f"ask helper: what is {number} + 1?")
            await posted(client)
        listed = await client.call("exchanges.list")
        second, first = (each["id"] for each in listed["exchanges"])
        shown = await client.call("exchanges.get", id=first)
        assert shown["request"] == "what is 1 + 1?"
        assert [step["step"] for step in shown["steps"]] == ["primary", "reply", "announce"]
        shared = next(i for i in range(36) if first[i] != second[i])
        assert (await client.call("exchanges.get", id=first[: shared + 1]))["id"] == first
        with pytest.raises(RpcFailed, match="Several exchanges") as refused:
            await client.call("exchanges.get", id=first[:shared])
        assert first in refused.value.message
        for wrong in ("ffffffff", "not an id", ""):
            with pytest.raises(RpcFailed, match="There is no exchange"):
                await client.call("exchanges.get", id=wrong)


async def test_exchanges_are_listed_page_after_page(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        await say(client, "say hi", "agent:helper:main")
        for number in (1, 2):
            await say(client, f"ask helper: what is {number} + 1?")
            await posted(client)
        first = await client.call("exchanges.list", limit=1)
        rest = await client.call("exchanges.list", limit=1, cursor=first["nextCursor"])
        requests = [each["request"] for each in first["exchanges"] + rest["exchanges"]]
        assert requests == ["what is 2 + 1?", "what is 1 + 1?"]


async def test_agents_are_listed_with_the_model_they_run_on(tmp_path: Path) -> None:
    async with served(tmp_path) as (client, _):
        found = await client.call("agents.list")
        assert [a["id"] for a in found["agents"]] == ["main", "helper"]
        assert found["agents"][0]["model"] == {"primary": "rehearsal/rehearsal"}
