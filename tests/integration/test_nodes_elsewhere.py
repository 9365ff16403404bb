"""A node that is connected to one gateway of a database, and used from another one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests import postgres, stores
from tests.integration.node_client import FakeNode, approve, node_of
from tests.integration.test_node_invoke import invoke
from tests.waiting import LIMIT_S, until

from hobnob.api.auth import owner_token
from hobnob.api.server import open_server
from hobnob.client import Client, open_client
from hobnob.errors import RpcFailed
from hobnob.gateway import Gateway, api_services
from hobnob.nodes import invocations
from hobnob.testing import calls, rehearse, script

pytestmark = pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself")
NODE_TOOL = calls("nodes", action="notify", node="Build Node", title="Done")


class Place(NamedTuple):
    """A gateway, with a client that may do everything."""

    gateway: Gateway
    url: str
    token: str
    owner: Client
    stack: AsyncExitStack  # ends this gateway alone


@pytest.fixture
async def places(tmp_path: Path) -> AsyncIterator[list[Place]]:
    """Two gateways on one database, which know each other."""
    url = postgres.new_database()
    async with AsyncExitStack() as all_of_them:
        found = []
        for name in ("one", "two"):
            stack = await all_of_them.enter_async_context(AsyncExitStack())
            (tmp_path / name).mkdir()
            settings: Any = script(NODE_TOOL, "Done.") | {"store": {"url": url}}
            settings |= {"gateway": {"port": 0, "name": name}}
            gateway = await stack.enter_async_context(rehearse(tmp_path / name, settings))
            address = await stack.enter_async_context(open_server(api_services(gateway)))
            token = owner_token(gateway.config)
            owner = await stack.enter_async_context(open_client(address, token))
            found.append(Place(gateway, address, token, owner, stack))
        await until(lambda: all(place.gateway.cluster.others == 1 for place in found))
        yield found


@pytest.fixture
async def node(places: list[Place]) -> AsyncIterator[FakeNode]:
    """An approved node, connected to the second gateway and known to the first."""
    here, there = places
    async with node_of(there.url, there.token) as node:
        await approve(there.owner, node)
        await until_connected(here, node, True)
        yield node


async def until_connected(place: Place, node: FakeNode, wanted: bool) -> None:
    await until(lambda: place.gateway.nodes.is_connected(node.key.id) is wanted)


@pytest.mark.promise("cluster.nodes_of_any_gateway")
async def test_a_command_reaches_a_node_of_another_gateway_and_its_answer_and_output_come_back(
    places: list[Place], node: FakeNode
) -> None:
    here = places[0]
    [row] = (await here.owner.call("node.list"))["nodes"]
    assert (row["connected"], row["nodeId"]) == (True, node.key.id)
    asking = invoke(here.owner, node)
    request = await node.asked()
    progress = {"invokeId": request["id"], "seq": 0, "chunk": "half"}
    assert (await node.call("node.invoke.progress", **progress))["payload"] == {"ok": True}
    answer = {"bins": {"git": "x" * 200_000}}  # takes many notifications
    assert (await node.answer(request, answer))["payload"] == {"ok": True}
    assert (await asking)["payload"] == answer
    async with asyncio.timeout(LIMIT_S):
        while (event := await here.owner.events.get())["event"] != "node.invoke.progress":
            pass
    assert event["payload"]["chunk"] == "half"
    assert (await node.answer(request, "again"))["payload"] == {"ok": True, "ignored": True}
    assert (await invoke(here.owner, node))["payload"] == answer  # the same key: it is not asked again
    assert node.requests.empty()


async def test_an_agent_uses_a_node_of_another_gateway(places: list[Place], node: FakeNode) -> None:
    here = places[0]
    asking = asyncio.ensure_future(here.owner.call("agent", message="go", idempotencyKey="turn"))
    await node.answer(await node.asked(), {"shown": True})
    run = (await asking)["runId"]
    await here.owner.call("agent.wait", runId=run)
    history = await here.owner.call("chat.history", sessionKey="main")
    assert '"shown":true' in str(history).replace(" ", "").replace("\\", "")


async def test_failures_and_answers_that_are_too_large_come_back_as_they_would_at_home(
    places: list[Place], node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invocations, "MAX_RESULT_BYTES", 1_000)
    asking = invoke(places[0].owner, node)
    await node.answer(await node.asked(), None, ok=False, error={"code": "NOPE", "message": "Rather not."})
    with pytest.raises(RpcFailed, match="Rather not"):
        await asking
    asking = invoke(places[0].owner, node, "k2")
    await node.answer(await node.asked(), "x" * 1_001)
    with pytest.raises(RpcFailed, match="the limit is 1,000"):
        await asking


async def test_a_command_can_be_cancelled_at_any_gateway(places: list[Place], node: FakeNode) -> None:
    for number, place in enumerate(places):
        asking = invoke(places[0].owner, node, f"k{number}")
        request = await node.asked()
        cancel = {"idempotencyKey": f"k{number}"}
        assert await place.owner.call("node.invoke.cancel", **cancel) == {"cancelled": True}
        with pytest.raises(RpcFailed, match="cancelled"):
            await asking
        assert (await node.heard("node.invoke.cancel"))["invokeId"] == request["id"]
        assert await place.owner.call("node.invoke.cancel", **cancel) == {"cancelled": False}


async def test_a_command_fails_when_its_node_leaves_the_other_gateway(
    places: list[Place], node: FakeNode
) -> None:
    asking = invoke(places[0].owner, node)
    await node.asked()
    await node.socket.close()
    with pytest.raises(RpcFailed, match="disconnected before it answered"):
        await asking
    with pytest.raises(RpcFailed, match="is not connected"):
        await invoke(places[0].owner, node, "k2")


async def test_a_command_fails_when_the_gateway_of_its_node_stops(
    places: list[Place], node: FakeNode
) -> None:
    here, there = places
    asking = invoke(here.owner, node)
    await node.asked()
    await there.stack.aclose()
    with pytest.raises(RpcFailed, match="disconnected before it answered"):
        await asking


async def test_a_node_is_told_to_stop_what_a_gateway_asked_for_that_is_gone(
    places: list[Place], node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that was killed cancels nothing itself."""
    here = places[0]
    asking = invoke(here.owner, node)
    request = await node.asked()
    monkeypatch.setattr(invocations.Invocations, "_tell_cancel", lambda *_: None)
    await here.stack.aclose()
    assert (await node.heard("node.invoke.cancel"))["invokeId"] == request["id"]
    assert (await node.answer(request, "late"))["payload"] == {"ok": True, "ignored": True}
    await asyncio.gather(asking, return_exceptions=True)


async def test_requests_are_announced_and_decided_at_any_gateway(places: list[Place]) -> None:
    here, there = places
    async with node_of(there.url, there.token) as node:
        async with asyncio.timeout(LIMIT_S):
            while (event := await here.owner.events.get())["event"] != "node.pair.requested":
                pass
        assert event["payload"]["nodeId"] == node.key.id
        await until_connected(here, node, True)
        await approve(here.owner, node)
        assert (await node.heard("node.pair.resolved"))["decision"] == "approved"
        await here.owner.call("node.pair.remove", nodeId=node.key.id)
        async with asyncio.timeout(LIMIT_S):
            await node.socket.wait_closed()
        assert node.socket.close_code == 1008
        await until_connected(here, node, False)


async def test_a_node_that_connects_to_another_gateway_is_used_there(
    places: list[Place], node: FakeNode
) -> None:
    here, there = places
    async with node_of(here.url, here.token, node.key) as again:
        async with asyncio.timeout(LIMIT_S):
            await node.socket.wait_closed()
        await until(lambda: there.gateway.nodes.connection_here(node.key.id) is None)
        await until_connected(there, again, True)
        asking = invoke(there.owner, again)
        await again.answer(await again.asked(), "here")
        assert (await asking)["payload"] == "here"
