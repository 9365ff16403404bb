"""What a caller from outside can do, and what it cannot set, over a real socket."""

import hmac
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_wire import READER, frame, served
from websockets.asyncio.client import connect

from hobnob import config
from hobnob.api.auth import Authenticator, Peer
from hobnob.api.rpc import METHODS
from hobnob.api.server import open_server
from hobnob.client import open_client
from hobnob.errors import BadInput, NotAllowed, RpcFailed, Unauthenticated
from hobnob.gateway import api_services
from hobnob.policy import Operator
from hobnob.requests import SpawnRequest
from hobnob.store import sessions
from hobnob.testing import OWNER, rehearse

TOKEN = "the-main-token-of-this-gateway"
ALL_SCOPES = ["operator.read", "operator.write", "operator.admin", "operator.approvals", "operator.pairing"]
AUTH = {"gateway": {"port": 0, "auth": {"token": TOKEN, "tokens": [READER]}}}


@pytest.mark.promise("access.main_token_holds_all")
async def test_the_token_of_the_gateway_holds_all_scopes(tmp_path: Path) -> None:
    async with served(tmp_path, AUTH) as (url, _), open_client(url, TOKEN) as client:
        assert client.hello["auth"]["scopes"] == ALL_SCOPES
        for method in METHODS.values():
            if method.parameters.model_fields:
                continue  # whatever else it wants, it does not miss a scope
            assert await client.call(method.name)
        assert (await client.call("agent", message="say hi", idempotencyKey="k"))["status"] == "ok"


@pytest.mark.promise("access.claims_add_nothing")
async def test_a_client_that_claims_more_scopes_gets_no_more(tmp_path: Path) -> None:
    async with served(tmp_path, AUTH) as (url, _), connect(url) as socket:
        await frame(socket)
        claimed = {"auth": {"token": "read-only"}, "role": "operator", "scopes": ["operator.admin"]}
        await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": claimed}))
        hello = await frame(socket)
        assert hello["payload"]["auth"]["scopes"] == ["operator.read"]
        ask = {"message": "hi", "idempotencyKey": "k"}
        await socket.send(json.dumps({"type": "req", "id": "2", "method": "agent", "params": ask}))
        while (answer := await frame(socket)).get("id") != "2":
            pass
        assert (answer["ok"], answer["error"]["code"]) == (False, "FORBIDDEN")


async def scopes_in_force(url: str, token: str, claimed: Any) -> list[str]:
    async with connect(url) as socket:
        await frame(socket)
        params = {"auth": {"token": token}, "scopes": claimed}
        await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": params}))
        found: list[str] = (await frame(socket))["payload"]["auth"]["scopes"]
        return found


@pytest.mark.promise("access.claims_narrow")
@pytest.mark.parametrize(
    ("token", "claimed", "in_force"),
    [
        (TOKEN, ["operator.read"], ["operator.read"]),
        (TOKEN, ["operator.write"], ["operator.read", "operator.write"]),
        (TOKEN, ["operator.pairing"], ["operator.pairing"]),
        (TOKEN, ["operator.admin", "operator.talk"], ALL_SCOPES),
        (TOKEN, ["operator.talk"], []),
        (TOKEN, "operator.admin", []),
        (TOKEN, [], ALL_SCOPES),
        (TOKEN, None, ALL_SCOPES),
        ("read-only", ["operator.write", "operator.pairing"], ["operator.read"]),
    ],
)
async def test_a_connection_has_the_scopes_it_claims_of_those_its_credential_holds(
    tmp_path: Path, token: str, claimed: Any, in_force: list[str]
) -> None:
    async with served(tmp_path, AUTH) as (url, _):
        assert await scopes_in_force(url, token, claimed) == in_force


@pytest.mark.promise("access.claims_narrow")
async def test_what_a_connection_did_not_claim_is_refused_and_a_reload_does_not_close_it(
    tmp_path: Path,
) -> None:
    async with rehearse(tmp_path, AUTH) as gateway:
        services = api_services(gateway)
        async with open_server(services) as url, connect(url) as socket:
            await frame(socket)
            params = {"auth": {"token": TOKEN}, "scopes": ["operator.read"]}
            await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": params}))
            assert (await frame(socket))["ok"]
            gateway.config.reload(gateway.config)
            assert services.clients.close_unless(services.auth.is_current, "withdrawn") == 0
            ask = {"message": "hi", "idempotencyKey": "k"}
            await socket.send(json.dumps({"type": "req", "id": "2", "method": "agent", "params": ask}))
            while (answer := await frame(socket)).get("id") != "2":
                pass
            assert answer["error"]["details"]["missingScope"] == "operator.write"


@pytest.mark.promise("access.constant_time")
@pytest.mark.parametrize("shown", [TOKEN, "read-only", "wrong"])
def test_a_token_is_compared_with_every_known_one_in_constant_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def noting(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return compare(known, given)

    file = tmp_path / "hobnob.json5"
    file.write_text(json.dumps(AUTH))
    auth = Authenticator(config.load(file, env={"HOBNOB_HOME": str(tmp_path)}))
    monkeypatch.setattr(hmac, "compare_digest", noting)
    with pytest.raises(Unauthenticated) if shown == "wrong" else nullcontext():
        auth.authenticate(Peer("127.0.0.1", True), token=shown)
    assert compared == [TOKEN.encode(), b"read-only"]  # also those behind the one that fits


@pytest.mark.promise("access.admin_is_owner")
@pytest.mark.parametrize(
    ("scopes", "owner"), [(("operator.admin",), True), (("operator.write",), False), ((), False)]
)
def test_who_holds_the_scope_of_an_administrator_is_an_owner(scopes: Any, owner: bool) -> None:
    assert Operator("x", scopes).is_owner == owner


@pytest.mark.promise("send_policy.holds_for_agent")
async def test_a_denied_session_takes_no_message_over_the_wire_either(tmp_path: Path) -> None:
    rules = {"session": {"sendPolicy": {"rules": [{"match": {"keyPrefix": "hook:"}, "action": "deny"}]}}}
    async with served(tmp_path, AUTH | rules) as (url, _), open_client(url, TOKEN) as client:
        with pytest.raises(RpcFailed, match="Sending into this session is denied"):
            await client.call("agent", message="hi", idempotencyKey="1", sessionKey="hook:1")
        assert (await client.call("agent", message="hi", idempotencyKey="2"))["status"] == "ok"


@pytest.mark.parametrize(
    "field",
    [
        pytest.param({"provenance": {"kind": "inter_session"}}, id="provenance"),
        pytest.param({"inputProvenance": {"kind": "inter_session"}}, id="inputProvenance"),
        pytest.param({"spawnedBy": "agent:main:main"}, id="spawnedBy"),
        pytest.param({"spawnDepth": 0}, id="spawnDepth"),
        pytest.param({"lineage": "x"}, id="lineage"),
        pytest.param({"workspace": "/"}, id="workspace"),
        pytest.param({"workspaceDir": "/"}, id="workspaceDir"),
        pytest.param({"cwd": "/"}, id="cwd"),
    ],
)
@pytest.mark.promise(
    "send.provenance_is_the_servers", "access.no_lineage_from_outside", "access.no_workspace_from_outside"
)
async def test_what_only_the_server_says_cannot_be_sent_along(tmp_path: Path, field: dict[str, Any]) -> None:
    async with served(tmp_path, AUTH) as (url, _), open_client(url, TOKEN) as client:
        with pytest.raises(RpcFailed, match=f"there is no parameter {next(iter(field))}"):
            await client.call("agent", message="hi", idempotencyKey="k", **field)


@pytest.mark.promise("access.no_lineage_from_outside", "access.no_workspace_from_outside")
@pytest.mark.parametrize(
    "field", ["spawned_by", "spawn_depth", "lineage", "root_key", "sandboxed", "workspace", "session_id"]
)
async def test_the_place_of_a_session_in_its_tree_cannot_be_set_from_outside(
    tmp_path: Path, field: str
) -> None:
    async with rehearse(tmp_path) as gateway:
        for change in (gateway.sessions.create, gateway.sessions.patch):
            with pytest.raises(BadInput, match=f"{field} of a session cannot be set"):
                await change(OWNER, "hook:1", **{field: "agent:main:main"})
        assert await gateway.store.read(sessions.find, "agent:main:hook:1") is None


@pytest.mark.promise("access.no_lineage_from_outside")
@pytest.mark.parametrize("key", ["subagent:x", "agent:main:subagent:x", "agent:main:acp:x"])
async def test_the_session_of_a_child_cannot_be_made_from_outside(tmp_path: Path, key: str) -> None:
    async with rehearse(tmp_path) as gateway:
        with pytest.raises(BadInput, match="sessions_spawn only"):
            await gateway.sessions.create(OWNER, key)


@pytest.mark.promise("access.tokens_of_some_agents")
async def test_a_token_of_some_agents_has_no_others_work_for_it(tmp_path: Path) -> None:
    narrow = Operator("n", ("operator.write",), ("helper",))
    agents = {"list": [{"id": "main"}, {"id": "helper", "subagents": {"allowAgents": ["*"]}}]}
    async with rehearse(tmp_path, {"agents": agents}) as gateway:
        await gateway.sessions.create(OWNER, "agent:helper:main")
        with pytest.raises(NotAllowed, match="not for sessions of agent"):
            await gateway.sessions.spawn_for(
                narrow, "agent:helper:main", SpawnRequest(task="x", agent_id="main")
            )
        await gateway.sessions.spawn_for(
            narrow, "agent:helper:main", SpawnRequest(task="x", agent_id="helper")
        )
        await gateway.sessions.spawn_for(OWNER, "agent:helper:main", SpawnRequest(task="x", agent_id="main"))
