"""Grants: tokens with which an MCP client acts as one session."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp.shared.exceptions import MCPError
from tests.integration.helpers import Gate, create_sessions
from tests.integration.mcp_clients import call, connected, grant, over_http, over_stdio, use
from tests.integration.test_mcp_server import BOB, OPEN, TOOLS, by_name, scripted
from tests.integration.web import FOR_BOB, OWNER_TOKEN, READER, WRITER, Web, web_of, withdraw_narrow_tokens
from tests.waiting import LIMIT_S

from hobnob import mcp_grants
from hobnob.store.access import mcp_grants as rows
from hobnob.testing import calls
from hobnob.types import now_ms

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


async def knock(web: Web, token: str | None, **headers: str) -> Any:
    """The answer of the endpoint to a request, without a client of the protocol."""
    accepted = {"Accept": "application/json, text/event-stream"} | headers
    return await web.ask("POST", "/mcp", PING, token=token, headers=accepted)


@pytest.mark.promise("mcp_server.grant_is_bounded")
async def test_only_the_token_of_a_grant_opens_the_endpoint(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        for token in (None, OWNER_TOKEN, WRITER, "hm_wrong"):
            refused = await knock(web, token)
            assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert "hobnob mcp grant" in refused.json["error"]["fix"]
        token = (await grant(web))["token"]
        assert (await knock(web, token)).status == 400  # let in: there is no session of the protocol yet
        assert (await knock(web, token, Origin="https://elsewhere.example")).status == 403


async def test_a_grant_opens_nothing_but_the_endpoint(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        token = (await grant(web))["token"]
        assert (await web.ask("POST", "/rpc/sessions.list", {}, token=token)).status == 401


@pytest.mark.promise("mcp_server.grant_is_bounded")
async def test_a_grant_ends_at_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with web_of(tmp_path) as web:
        made = await grant(web, ttlSeconds=60)
        assert (await knock(web, made["token"])).status == 400
        monkeypatch.setattr(mcp_grants, "now_ms", lambda: now_ms() + 61_000)
        assert (await knock(web, made["token"])).status == 401
        [row] = (await call(web, "mcp.grants.list"))["payload"]["grants"]
        assert row["state"] == "expired"


@pytest.mark.promise("mcp_server.grant_is_bounded")
async def test_a_grant_survives_a_restart_and_a_revoked_one_stays_revoked(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        kept, gone = await grant(web, name="kept"), await grant(web, name="gone")
        await call(web, "mcp.grants.revoke", grantId=gone["grant"]["grantId"])
    async with web_of(tmp_path) as web:
        assert (await knock(web, kept["token"])).status == 400
        assert (await knock(web, gone["token"])).status == 401
        listed = (await call(web, "mcp.grants.list"))["payload"]["grants"]
        assert {row["name"]: row["state"] for row in listed} == {"kept": "active", "gone": "revoked"}


@pytest.mark.sqlite_file
@pytest.mark.promise("mcp_server.token_not_kept")
async def test_the_token_of_a_grant_is_nowhere_on_disk(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        token = (await grant(web))["token"]
        assert token not in str(await call(web, "mcp.grants.list"))
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 2
    assert [data for data in files if token.removeprefix("hm_").encode() in data] == []


@pytest.mark.promise("mcp_server.never_wider")
async def test_a_grant_for_reading_only_neither_sends_nor_spawns(tmp_path: Path) -> None:
    async with web_of(tmp_path, OPEN) as web:
        made = await grant(web, readOnly=True)
        async with over_http(web.url, made["token"]) as client:
            offered = set(by_name((await client.list_tools()).tools))
            assert set(TOOLS) - offered == {"sessions_send", "sessions_spawn", "sessions_yield", "subagents"}
            with pytest.raises(MCPError, match="sessions_send"):
                await client.call_tool("sessions_send", {"agentId": "bob", "message": "hi"})
            model = await use(client, "session_status", model="rehearsal/rehearsal")
            assert (model["status"], model["isError"]) == ("forbidden", True)


@pytest.mark.promise("mcp_server.never_wider")
async def test_a_token_that_may_only_read_or_only_some_agents_makes_no_grant(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        for token, code in ((READER, "scope.missing"), (FOR_BOB, "tools.narrow_token")):
            path, body = "/rpc/mcp.grants.create", {"params": {"sessionKey": BOB}}
            refused = await web.ask("POST", path, body, token=token)
            assert (refused.status, refused.json["error"]["code"]) == (403, code)


@pytest.mark.promise("mcp_server.never_wider")
async def test_a_grant_of_a_token_without_admin_cannot_change_models(tmp_path: Path) -> None:
    async with web_of(tmp_path, OPEN) as web:
        made = await grant(web, token=WRITER)
        assert made["grant"]["scopes"] == ["operator.read", "operator.write"]
        async with over_http(web.url, made["token"]) as client:
            refused = await use(client, "session_status", model="rehearsal/rehearsal")
            assert refused["code"] == "scope.missing"


async def test_others_neither_see_nor_revoke_the_grants_of_the_owner(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        owners, writers = await grant(web, name="owner's"), await grant(web, name="writer's", token=WRITER)
        seen = (await call(web, "mcp.grants.list", token=WRITER))["payload"]["grants"]
        assert [row["name"] for row in seen] == ["writer's"]
        refused = await call(web, "mcp.grants.revoke", token=WRITER, grantId=owners["grant"]["grantId"])
        assert refused["error"]["code"] == "not_found"
        assert (await knock(web, owners["token"])).status == 400
        done = await call(web, "mcp.grants.revoke", grantId=writers["grant"]["grantId"])
        assert done["payload"]["grant"]["state"] == "revoked"


@pytest.mark.promise("mcp_server.closes_with_its_maker")
async def test_a_grant_is_void_when_the_secret_of_its_maker_is_withdrawn(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        made = await grant(web, token=WRITER)
        assert (await knock(web, made["token"])).status == 400
        withdraw_narrow_tokens(web)
        assert (await knock(web, made["token"])).status == 401
        [row] = (await call(web, "mcp.grants.list"))["payload"]["grants"]
        assert row["state"] == "withdrawn"


@pytest.mark.promise("mcp_server.closes_with_its_maker")
async def test_a_grant_is_void_while_the_owner_has_another_token(
    tmp_path: Path,
) -> None:
    async with web_of(tmp_path) as web:
        made = await grant(web)
    auth = {"auth": {"token": "another-token-of-the-owner"}}
    async with web_of(tmp_path, gateway=auth) as web:
        assert (await knock(web, made["token"])).status == 401
    async with web_of(tmp_path) as web:
        assert (await knock(web, made["token"])).status == 400


@pytest.mark.promise("mcp_server.closes_with_its_maker")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_revoking_a_grant_ends_a_call_that_waits(tmp_path: Path, mode: str) -> None:
    gate = Gate()
    settings = scripted(**{BOB: [calls("hold"), "x", "ANNOUNCE_SKIP"], "agent:ann:main": ["REPLY_SKIP"]})
    async with web_of(tmp_path, settings, tools=(gate.tool,)) as web:
        made = await grant(web)
        with pytest.raises((MCPError, ExceptionGroup)):
            async with over_http(web.url, made["token"], mode) as client, asyncio.timeout(LIMIT_S):
                arguments = {"agentId": "bob", "message": "go", "timeoutSeconds": 45}
                waiting = asyncio.create_task(client.call_tool("sessions_send", arguments))
                await gate.reached.wait()
                done = await call(web, "mcp.grants.revoke", grantId=made["grant"]["grantId"])
                assert done["payload"]["closedRequests"] >= 1
                await waiting
        gate.open.set()


@pytest.mark.promise("mcp_server.closes_with_its_maker")
async def test_a_stream_for_notifications_closes_when_the_makers_secret_is_withdrawn(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        token = (await grant(web, token=WRITER))["token"]
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}}
        hello["clientInfo"] = {"name": "test", "version": "1"}
        request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        accepted = {"Accept": "application/json, text/event-stream"}
        async with web.open("POST", "/mcp", request, token=token, headers=accepted) as answer:
            session = answer.headers["Mcp-Session-Id"]
            await answer.read()
        listening = accepted | {"Mcp-Session-Id": session}
        async with web.open("GET", "/mcp", token=token, headers=listening) as stream:
            assert stream.status == 200
            withdraw_narrow_tokens(web)
            web.services.clients.close_unless(web.services.auth.is_current, "withdrawn")
            with pytest.raises((aiohttp.ClientError, asyncio.IncompleteReadError)):
                async with asyncio.timeout(LIMIT_S):
                    assert await stream.content.read() == b""
                    raise aiohttp.ClientError  # ended without an error, which is as good


async def test_a_session_of_the_protocol_belongs_to_the_grant_that_opened_it(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        one, other = (await grant(web))["token"], (await grant(web))["token"]
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}}
        hello["clientInfo"] = {"name": "test", "version": "1"}
        request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        accepted = {"Accept": "application/json, text/event-stream"}
        async with web.open("POST", "/mcp", request, token=one, headers=accepted) as answer:
            session = answer.headers["Mcp-Session-Id"]
            await answer.read()
        assert (await knock(web, one, **{"Mcp-Session-Id": session})).status == 200
        assert (await knock(web, other, **{"Mcp-Session-Id": session})).status == 404


async def test_a_grant_ends_with_its_session_also_if_another_gets_the_same_key(tmp_path: Path) -> None:
    key = "agent:ann:dashboard:desk"
    async with web_of(tmp_path) as web:
        await call(web, "sessions.create", key=key)
        made = await grant(web, key)
        assert (await knock(web, made["token"])).status == 400
        await call(web, "sessions.patch", key=key, archived=True)
        assert (await knock(web, made["token"])).status == 409
        await call(web, "sessions.delete", key=key)
        assert (await knock(web, made["token"])).status == 404
        await create_sessions(web.gateway, key)
        session = await web.gateway.sessions.resolve(web.services.auth.by_name("owner").operator, key)
        assert session.created_at_ms < made["grant"]["createdAtMs"]


async def test_a_grant_for_an_unknown_session_is_refused(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        refused = await call(web, "mcp.grants.create", sessionKey="agent:ann:dashboard:none")
        assert refused["error"]["code"] == "session.not_found"


async def test_the_last_use_of_a_grant_is_listed(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        made = await grant(web, name="desk")
        [row] = (await call(web, "mcp.grants.list"))["payload"]["grants"]
        assert "lastUsedAtMs" not in row
        await knock(web, made["token"])
        [row] = (await call(web, "mcp.grants.list"))["payload"]["grants"]
        assert row["lastUsedAtMs"] >= row["createdAtMs"]


async def test_long_ended_grants_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with web_of(tmp_path) as web:
        await grant(web, name="old", ttlSeconds=1)
        monkeypatch.setattr(rows, "KEPT_MS", -2_000)
        await grant(web, name="new")
        listed = (await call(web, "mcp.grants.list"))["payload"]["grants"]
        assert [row["name"] for row in listed] == ["new"]


async def test_the_command_revokes_its_grant_when_the_client_goes(tmp_path: Path) -> None:
    async with web_of(tmp_path) as web:
        async with connected(web, "stdio") as client:
            await use(client, "sessions_list")
            [row] = (await call(web, "mcp.grants.list"))["payload"]["grants"]
            assert (row["state"], row["name"]) == ("active", "hobnob mcp")

        states: list[str] = []

        async def look() -> None:
            listed = (await call(web, "mcp.grants.list"))["payload"]["grants"]
            states[:] = [row["state"] for row in listed]

        async with asyncio.timeout(LIMIT_S):
            while states != ["revoked"]:
                await look()


async def test_the_command_needs_no_other_token_than_that_of_a_grant(tmp_path: Path) -> None:
    async with web_of(tmp_path, OPEN) as web:
        made = await grant(web, BOB)
        env = {"HOBNOB_MCP_TOKEN": made["token"], "HOBNOB_TOKEN": "no-token-of-this-gateway"}
        async with over_stdio(web, **env) as client:
            assert (await use(client, "agents_list"))["requester"] == "bob"
        [row] = (await call(web, "mcp.grants.list"))["payload"]["grants"]
        assert row["state"] == "active"  # it was made elsewhere


async def test_a_client_of_the_command_is_told_when_its_grant_is_revoked(tmp_path: Path) -> None:
    async with web_of(tmp_path, OPEN) as web, connected(web, "stdio") as client:
        await use(client, "sessions_list")
        [row] = (await call(web, "mcp.grants.list"))["payload"]["grants"]
        await call(web, "mcp.grants.revoke", grantId=row["grantId"])
        with pytest.raises(MCPError, match="grant was revoked"):
            await use(client, "sessions_list")
