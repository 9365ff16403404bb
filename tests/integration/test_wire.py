"""The gateway over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LIMIT_S
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from hobnob.api.auth import owner_token
from hobnob.api.rpc import METHODS, names_for
from hobnob.api.server import open_server
from hobnob.client import Client, open_client
from hobnob.errors import BadInput, RpcFailed
from hobnob.gateway import api_services
from hobnob.testing import calls, rehearse, script
from hobnob.tools import Context, tool

READER = {"name": "reader", "token": "read-only", "scopes": ["operator.read"]}


@asynccontextmanager
async def served(home: Path, settings: Any = None, **more: Any) -> AsyncIterator[tuple[str, str]]:
    """The address and the token of a gateway."""
    settings = {"gateway": {"port": 0, "auth": {"tokens": [READER]}}, **(settings or {})}
    async with rehearse(home, settings, **more) as gateway, open_server(api_services(gateway)) as url:
        yield url, owner_token(gateway.config)


@asynccontextmanager
async def client_of(home: Path, settings: Any = None, **more: Any) -> AsyncIterator[Client]:
    async with served(home, settings, **more) as (url, token), open_client(url, token) as client:
        yield client


async def frame(socket: ClientConnection) -> Any:
    async with asyncio.timeout(LIMIT_S):
        return json.loads(await socket.recv())


async def test_a_turn_over_the_wire_is_accepted_and_then_answered(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        answers = [a async for a in client.answers("agent", message="say hi", idempotencyKey="k")]
        assert [a["status"] for a in answers] == ["accepted", "ok"]
        assert answers[1]["result"]["payloads"][0]["text"] == "hi"
        waited = await client.call("agent.wait", runId=answers[0]["runId"])
        assert (waited["status"], waited["outcome"]) == ("ok", "ok")
        again = await client.call("agent", message="say hi", idempotencyKey="k")
        assert again["runId"] == answers[0]["runId"]


async def test_a_client_sees_the_answer_and_the_tools_as_they_come(tmp_path: Path) -> None:
    @tool()
    async def shout(context: Context, word: str) -> str:
        """Shout."""
        return word.upper()

    settings = script(calls("shout", word="hey"), "One two.")
    async with client_of(tmp_path, settings, tools=[shout]) as client:
        await client.call("agent", message="go", idempotencyKey="k")
        seen = []
        while not client.events.empty():
            seen.append(client.events.get_nowait())
        agent = [e["payload"] for e in seen if e["event"] == "agent"]
        streams = list(dict.fromkeys(p["stream"] for p in agent))
        assert streams == ["lifecycle", "tool", "assistant"]
        assert "".join(p["data"]["delta"] for p in agent if p["stream"] == "assistant") == "One two."
        assert agent[-1]["data"]["phase"] == "end"
        assert "".join(_deltas(seen)) == "One two."
        assert [e["seq"] for e in seen if "seq" in e] == list(range(1, len(seen)))
        assert {e["event"] for e in seen} == {"connect.challenge", "agent", "chat"}


def _deltas(seen: list[Any]) -> list[str]:
    return [e["payload"]["deltaText"] for e in seen if e["payload"].get("state") == "delta"]


@pytest.mark.promise("access.narrower_tokens")
async def test_hello_names_the_methods_and_the_scopes_of_the_credential(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, _), open_client(url, "read-only") as client:
        assert client.hello["features"]["methods"] == names_for("operator")
        assert client.hello["auth"]["scopes"] == ["operator.read"]
        assert (await client.call("health"))["ok"] is True
        assert (await client.call("models.list"))["models"][0]["name"] == "rehearsal/rehearsal"
        assert (await client.call("agents.list"))["defaultId"] == "main"
        for method in METHODS.values():
            if method.scope != "operator.read":
                with pytest.raises(RpcFailed, match="missing scope" if method.scope else "unauthorized role"):
                    await client.call(method.name)


@pytest.mark.parametrize("token", ["", "wrong", "read-only2"])
async def test_a_wrong_token_is_refused(tmp_path: Path, token: str) -> None:
    async with served(tmp_path) as (url, _):
        with pytest.raises(RpcFailed, match="unauthorized"):
            async with open_client(url, token):
                pass


async def test_the_token_is_made_once_and_kept_private(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, first):
        assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    async with served(tmp_path) as (_, second):
        assert first == second
        assert len(first) > 30


@pytest.mark.promise("access.foreign_pages_websocket")
async def test_a_page_from_elsewhere_may_not_connect(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, _):
        with pytest.raises((InvalidStatus, ConnectionClosed)):
            async with connect(url, additional_headers={"Origin": "https://evil.example"}) as socket:
                await socket.recv()


@pytest.mark.parametrize(
    "first", ["rubbish", "[]", '"x"', "{}", '{"method": "health", "id": "1"}', "1" * 70_000]
)
async def test_what_is_not_a_handshake_ends_the_connection_and_nothing_else(
    tmp_path: Path, first: str
) -> None:
    async with served(tmp_path) as (url, token):
        async with connect(url) as socket:
            assert (await frame(socket))["event"] == "connect.challenge"
            await socket.send(first)
            with pytest.raises(ConnectionClosed):
                while True:
                    await frame(socket)
        async with open_client(url, token) as client:
            assert (await client.call("health"))["ok"] is True


@pytest.mark.parametrize(("low", "high", "spoken"), [(3, 3, 3), (4, 4, 4), (3, 4, 4), (1, 9, 4)])
async def test_both_versions_of_the_protocol_are_spoken(
    tmp_path: Path, low: int, high: int, spoken: int
) -> None:
    async with served(tmp_path) as (url, token), connect(url) as socket:
        await frame(socket)
        params = {"minProtocol": low, "maxProtocol": high, "auth": {"token": token}}
        await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": params}))
        assert (await frame(socket))["payload"]["protocol"] == spoken


@pytest.mark.parametrize(
    ("method", "params", "says"),
    [
        ("nope", {}, "unknown method: nope"),
        ("agent", {"message": "x"}, "idempotencyKey is required"),
        ("agent", {"mesage": "x", "idempotencyKey": "k"}, "did you mean message?"),
        ("agent", {"message": " ", "idempotencyKey": "k"}, "The message is empty"),
        ("agent", {"message": "x", "idempotencyKey": "k", "sessionKey": "hook:.."}, "path segments"),
        ("agent", {"message": "x", "idempotencyKey": "k", "agentId": "ghost"}, "There is no agent 'ghost'"),
        ("agent", {"message": "x", "idempotencyKey": "k", "model": "no/such"}, "no provider 'no'"),
        ("agent.wait", {"runId": "gone"}, "There is no run gone"),
        ("agent", [], "agent params"),
    ],
)
async def test_a_bad_request_is_answered_with_what_is_wrong(
    tmp_path: Path, method: str, params: Any, says: str
) -> None:
    async with served(tmp_path) as (url, token), connect(url) as socket:
        await frame(socket)
        hello = {"minProtocol": 4, "maxProtocol": 4, "auth": {"token": token}}
        await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": hello}))
        await frame(socket)
        await socket.send(json.dumps({"type": "req", "id": "2", "method": method, "params": params}))
        answer = await frame(socket)
        assert (answer["id"], answer["ok"]) == ("2", False)
        assert says in answer["error"]["message"]


@pytest.mark.promise("access.tokens_of_some_agents", "policy.decides_events")
async def test_a_credential_hears_and_is_told_only_of_its_own_agents(tmp_path: Path) -> None:
    narrow = {"name": "n", "token": "narrow-token", "scopes": ["operator.write"], "agents": ["helper"]}
    blind = {"name": "b", "token": "blind-token", "scopes": []}
    settings = {
        "gateway": {"port": 0, "auth": {"tokens": [narrow, blind]}},
        "agents": {"list": [{"id": "main"}, {"id": "helper"}]},
    }
    async with (
        served(tmp_path, settings) as (url, token),
        open_client(url, token) as owner,
        open_client(url, "narrow-token") as helper,
        open_client(url, "blind-token") as nobody,
    ):
        secret = await owner.call("agent", message="say secret", idempotencyKey="s")
        await owner.call("agent", message="say open", idempotencyKey="o", agentId="helper")
        with pytest.raises(RpcFailed, match="There is no run"):
            await helper.call("agent.wait", runId=secret["runId"])
        with pytest.raises(RpcFailed, match="not for sessions of agent"):
            await helper.call("agent", message="hi", idempotencyKey="h")
        mine = await helper.call("agent", message="say mine", idempotencyKey="m", agentId="helper")
        assert mine["status"] == "ok"
        heard = []
        while not helper.events.empty():
            heard.append(helper.events.get_nowait())
        assert {e["payload"]["sessionKey"] for e in heard if e["event"] == "agent"} == {"agent:helper:main"}
        assert [e for e in _drained(nobody) if e["event"] == "agent"] == []


def _drained(client: Client) -> list[Any]:
    seen = []
    while not client.events.empty():
        seen.append(client.events.get_nowait())
    return seen


async def test_the_clients_own_key_is_the_id_of_the_run(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        assert (await client.call("agent", message="say hi", idempotencyKey="my-key"))["runId"] == "my-key"


@pytest.mark.parametrize("kept", ["", " ", "short"])
async def test_a_token_file_that_was_cut_off_lets_nobody_in(tmp_path: Path, kept: str) -> None:
    (tmp_path / "token").write_text(kept)
    async with served(tmp_path) as (url, token):
        assert len(token) > 30
        with pytest.raises(RpcFailed, match="unauthorized"):
            async with open_client(url, kept):
                pass


async def test_a_binary_frame_ends_the_connection_with_a_reason(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, _), connect(url) as socket:
        await frame(socket)
        await socket.send(b"bytes")
        with pytest.raises(ConnectionClosed) as closed:
            await frame(socket)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1003


@pytest.mark.promise("send.wait_again")
async def test_a_client_that_waits_is_answered_after_the_gateway_was_restarted(tmp_path: Path) -> None:
    settings = {"gateway": {"port": 0}, **script({"text": "At last.", "delayMs": 300})}
    async with served(tmp_path, settings) as (url, token), open_client(url, token) as client:
        answers = client.answers("agent", message="go", idempotencyKey="k")
        accepted = await anext(answers)
    async with served(tmp_path, settings) as (url, token), open_client(url, token) as client:
        waited = await client.call("agent.wait", runId=accepted["runId"], timeoutMs=60_000)
        assert waited["result"]["payloads"][0]["text"] == "At last."


@pytest.mark.promise("send.waits_on_the_server", "send.wait_again")
async def test_a_client_that_leaves_does_not_take_its_turn_along(tmp_path: Path) -> None:
    here, go_on = asyncio.Event(), asyncio.Event()

    @tool()
    async def hold(context: Context) -> str:
        """Wait."""
        here.set()
        await go_on.wait()
        return "held"

    async with served(tmp_path, script(calls("hold"), "Done."), tools=[hold]) as (url, token):
        async with open_client(url, token) as client:
            accepted = await anext(client.answers("agent", message="go", idempotencyKey="k"))
            await here.wait()
        go_on.set()
        async with open_client(url, token) as client:
            waited = await client.call("agent.wait", runId=accepted["runId"], timeoutMs=60_000)
            assert waited["result"]["payloads"][0]["text"] == "Done."


@pytest.mark.promise("access.beyond_loopback_needs_a_token")
async def test_listening_beyond_this_machine_needs_a_token(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no token is set"):
        async with served(tmp_path, {"gateway": {"bind": "lan", "port": 0}}):
            pass


async def test_a_port_that_is_taken_is_an_error_that_says_so(tmp_path: Path) -> None:
    async with served(tmp_path / ".") as (url, _):
        port = int(url.rsplit(":", 1)[1])
        (tmp_path / "other").mkdir()
        with pytest.raises(BadInput, match=str(port)):
            async with served(tmp_path / "other", {"gateway": {"port": port}}):
                pass
