"""Nodes: how they sign in, are approved and removed, and what they may do before that."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration.node_client import AWAY, COMMANDS, NodeKey, approve, node_of, refused
from tests.integration.test_wire import READER, served
from tests.waiting import LIMIT_S

from hobnob.client import open_client
from hobnob.errors import RpcFailed


@pytest.mark.promise("nodes.approved_surface")
async def test_a_local_node_is_connected_at_once_and_can_do_nothing_until_it_is_approved(
    tmp_path: Path,
) -> None:
    async with (
        served(tmp_path) as (url, token),
        open_client(url, token) as owner,
        node_of(url, token) as node,
    ):
        assert node.hello["auth"]["role"] == "node"
        assert node.hello["auth"]["scopes"] == []
        [row] = (await owner.call("node.list"))["nodes"]
        assert (row["connected"], row["paired"], row["commands"]) == (True, False, [])
        assert row["approvalState"] == "pending-approval"
        assert row["pendingDeclaredCommands"] == COMMANDS
        with pytest.raises(RpcFailed, match="has not been approved"):
            await owner.call("node.invoke", nodeId=node.key.id, command="system.which", idempotencyKey="1")
        early = await node.event("agent.request", message="say hi")
        assert early["error"]["details"]["code"] == "PAIRING_CHANGED"
        await approve(owner, node)
        assert (await node.heard("node.pair.resolved"))["decision"] == "approved"
        described = await owner.call("node.describe", nodeId="Build Node")
        assert described["commands"] == COMMANDS
        assert (await node.event("agent.request", message="say hi"))["ok"]


@pytest.mark.promise("nodes.own_key")
async def test_a_node_from_elsewhere_waits_until_it_is_approved(tmp_path: Path) -> None:
    key = NodeKey()
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        error = await refused(url, token, key, AWAY)
        assert error["code"] == "NOT_PAIRED"
        request = error["details"]["requestId"]
        assert f"hobnob node approve {request}" in error["details"]["fix"]
        assert (await refused(url, token, key, AWAY))["details"]["requestId"] == request
        await owner.call("node.pair.approve", requestId=request)
        async with node_of(url, token, key, AWAY) as node:
            assert (await node.event("agent.request", message="say hi"))["ok"]


async def test_nodes_of_a_network_that_is_named_connect_like_local_ones(tmp_path: Path) -> None:
    proxies = {"gateway": {"port": 0, "trustedProxies": ["127.0.0.1"]}}
    proxies["gateway"]["nodes"] = {"pairing": {"autoApproveCidrs": ["192.0.2.0/24"]}}
    async with served(tmp_path, proxies) as (url, token), node_of(url, token, headers=AWAY):
        assert (await refused(url, token, NodeKey(), {"X-Forwarded-For": "198.51.100.1"}))[
            "code"
        ] == "NOT_PAIRED"


@pytest.mark.promise("nodes.own_key")
@pytest.mark.parametrize(
    "wrong, code",
    [
        ({"id": "0" * 64}, "DEVICE_AUTH_DEVICE_ID_MISMATCH"),
        ({"nonce": "other"}, "DEVICE_AUTH_NONCE_MISMATCH"),
        ({"signature": "AAAA"}, "DEVICE_AUTH_SIGNATURE_INVALID"),
    ],
)
async def test_a_node_that_claims_an_identity_it_cannot_prove_is_refused(
    tmp_path: Path, wrong: Any, code: str
) -> None:
    async with served(tmp_path) as (url, token):
        assert (await refused(url, token, NodeKey(), device=wrong))["details"]["code"] == code


@pytest.mark.promise("nodes.own_key")
async def test_a_node_without_a_key_or_without_a_right_secret_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        assert (
            "PUBLIC_KEY"
            in (await refused(url, token, NodeKey(), device={"publicKey": ""}))["details"]["code"]
        )
        assert (await refused(url, "wrong", NodeKey()))["details"]["code"] == "AUTH_TOKEN_MISMATCH"
        assert (await owner.call("node.pair.list"))["pending"] == []


async def test_a_node_signs_in_with_the_token_it_was_given_and_only_as_that_node(tmp_path: Path) -> None:
    key = NodeKey()
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        async with node_of(url, token, key) as node:
            own = node.hello["auth"]["deviceToken"]
            await approve(owner, node)
        async with node_of(url, own, key):
            assert await owner.call("node.pair.verify", nodeId=key.id, token=own) != {"ok": False}
        assert (await refused(url, own, NodeKey()))["details"]["code"] == "AUTH_TOKEN_MISMATCH"
        assert not (await refused(url, own, key, role="operator"))["details"]["code"].startswith("PAIRING")
        with pytest.raises(RpcFailed, match="unauthorized"):
            async with open_client(url, own):
                pass


@pytest.mark.promise("nodes.no_rights")
async def test_a_node_may_call_no_method_of_operators_and_an_operator_none_of_nodes(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as (url, token),
        open_client(url, token) as owner,
        node_of(url, token) as node,
    ):
        await approve(owner, node)
        for method in ("sessions.list", "chat.history", "config.get", "node.list", "node.pair.approve"):
            answer = await node.call(method)
            assert answer["error"]["message"] == "unauthorized role: node", method
        assert (await node.call("health"))["ok"]
        with pytest.raises(RpcFailed, match="unauthorized role: operator"):
            await owner.call("node.event", event="agent.request")


async def test_a_token_without_scopes_is_good_for_a_node(tmp_path: Path) -> None:
    tokens = [READER, {"name": "nodes", "token": "only-for-nodes", "scopes": []}]
    settings = {"gateway": {"port": 0, "auth": {"tokens": tokens}}}
    async with served(tmp_path, settings) as (url, token), open_client(url, token) as owner:
        async with node_of(url, "only-for-nodes") as node:
            await approve(owner, node)
            assert (await node.event("agent.request", message="say hi"))["ok"]
        async with open_client(url, "only-for-nodes") as client:
            with pytest.raises(RpcFailed, match="missing scope"):
                await client.call("health")


@pytest.mark.promise("nodes.approved_surface")
async def test_commands_beyond_the_usual_ones_need_a_setting(tmp_path: Path) -> None:
    offered = ["camera.snap", "demo.echo", "system.which"]
    settings = {
        "gateway": {"port": 0, "nodes": {"commands": {"allow": ["demo.*"], "deny": ["system.which"]}}}
    }
    async with served(tmp_path, settings) as (url, token), open_client(url, token) as owner:
        async with node_of(url, token, commands=offered) as node:
            await approve(owner, node)
            assert (await owner.call("node.describe", nodeId=node.key.id))["commands"] == ["demo.echo"]
            with pytest.raises(RpcFailed, match=r"no approved command 'camera\.snap'"):
                await owner.call("node.invoke", nodeId=node.key.id, command="camera.snap", idempotencyKey="1")


@pytest.mark.promise("nodes.approved_surface")
async def test_a_surface_that_grows_is_asked_for_again_and_one_that_shrinks_is_not(tmp_path: Path) -> None:
    key = NodeKey()
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:

        async def row_with(*commands: str) -> Any:
            async with node_of(url, token, key, commands=list(commands)):
                return await owner.call("node.describe", nodeId=key.id)

        await row_with("system.which")
        await approve(owner, key)
        assert (await row_with("system.which"))["approvalState"] == "approved"
        grown = await row_with("system.which", "system.run")
        assert (grown["approvalState"], grown["commands"]) == ("pending-approval", ["system.which"])
        [pending] = (await owner.call("node.pair.list"))["pending"]
        assert pending["newCommands"] == ["system.run"]
        await owner.call("node.pair.reject", requestId=pending["requestId"])
        again = await row_with("system.which", "system.run")
        assert (again["approvalState"], again["commands"]) == ("approved", ["system.which"])
        assert (await row_with())["commands"] == []


async def test_approving_programs_needs_admin_and_approving_a_note_does_not(tmp_path: Path) -> None:
    scopes = ["operator.read", "operator.write", "operator.pairing"]
    tokens = [{"name": "clerk", "token": "clerks-token", "scopes": scopes}]
    settings = {"gateway": {"port": 0, "auth": {"tokens": tokens}}}
    async with served(tmp_path, settings) as (url, token), open_client(url, "clerks-token") as clerk:
        async with node_of(url, token) as node, node_of(url, token, commands=["system.notify"]) as modest:
            with pytest.raises(RpcFailed, match=r"missing scope: operator\.admin"):
                await approve(clerk, node)
            await approve(clerk, modest)
            assert (await clerk.call("node.describe", nodeId=modest.key.id))["paired"]


async def test_owners_hear_of_a_node_that_asks(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as (url, token),
        open_client(url, token) as owner,
        node_of(url, token) as node,
    ):
        news = None
        while news is None:
            event = await owner.events.get()
            news = event["payload"] if event and event["event"] == "node.pair.requested" else None
        assert (news["nodeId"], news["displayName"]) == (node.key.id, "Build Node")
        assert news["requiredApproveScopes"] == ["operator.pairing", "operator.admin"]


@pytest.mark.parametrize("decision", ["remove", "reject"])
async def test_a_node_that_is_sent_away_is_disconnected_and_stays_out(tmp_path: Path, decision: str) -> None:
    key = NodeKey()
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        async with node_of(url, token, key) as node:
            if decision == "remove":
                await approve(owner, node)
                await owner.call("node.pair.remove", nodeId=key.id)
            else:
                [pending] = (await owner.call("node.pair.list"))["pending"]
                await owner.call("node.pair.reject", requestId=pending["requestId"])
            await node.socket.wait_closed()
        for secret in (token, node.hello["auth"]["deviceToken"]):
            assert (await refused(url, secret, key))["code"] in ("NOT_PAIRED", "INVALID_REQUEST")


@pytest.mark.promise("nodes.approved_surface")
async def test_pairings_survive_a_restart(tmp_path: Path) -> None:
    key = NodeKey()
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        async with node_of(url, token, key) as node:
            await approve(owner, node)
            await owner.call("node.rename", nodeId=key.id, displayName="Workshop")
            own = node.hello["auth"]["deviceToken"]
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        [row] = (await owner.call("node.list"))["nodes"]
        assert (row["displayName"], row["paired"], row["connected"]) == ("Workshop", True, False)
        assert row["lastSeenReason"] == "disconnect"
        async with node_of(url, own, key):
            assert (await owner.call("node.describe", nodeId="workshop"))["connected"]


async def test_a_node_that_connects_again_replaces_its_older_connection(tmp_path: Path) -> None:
    key = NodeKey()
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        async with node_of(url, token, key) as first, node_of(url, token, key):
            await first.socket.wait_closed()
            assert (await owner.call("node.describe", nodeId=key.id))["connected"]


async def test_a_connection_is_closed_also_if_it_has_just_begun(tmp_path: Path) -> None:
    """A task that is cancelled before its first step ends without a word."""

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        if coroutine.__name__ == "_send_events":
            connection = coroutine.cr_frame.f_locals["self"]
            loop.call_soon(connection.close, 1008, "withdrawn")  # comes before the first step
        return asyncio.Task(coroutine, loop=loop, **options)

    async with served(tmp_path) as (url, token):
        asyncio.get_running_loop().set_task_factory(factory)
        async with node_of(url, token) as node, asyncio.timeout(LIMIT_S):
            await node.socket.wait_closed()
            assert (node.socket.close_code, node.socket.close_reason) == (1008, "withdrawn")
        asyncio.get_running_loop().set_task_factory(None)


async def test_requests_of_one_credential_are_bounded(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        for _ in range(23):
            await refused(url, token, NodeKey(), AWAY)
        assert len((await owner.call("node.pair.list"))["pending"]) == 20


async def test_a_withdrawn_credential_disconnects_its_nodes(tmp_path: Path) -> None:
    file = tmp_path / "hobnob.json5"
    tokens = [{"name": "nodes", "token": "only-for-nodes", "scopes": []}]
    settings = {"gateway": {"port": 0, "auth": {"tokens": tokens}}}
    async with served(tmp_path, settings) as (url, token), open_client(url, token) as owner:
        async with node_of(url, "only-for-nodes") as node:
            await approve(owner, node)
            file.write_text(file.read_text().replace("only-for-nodes", "something-else"))
            await owner.call("config.reload")
            await node.socket.wait_closed()
            assert (await refused(url, node.hello["auth"]["deviceToken"], node.key))["code"] != "NOT_PAIRED"
