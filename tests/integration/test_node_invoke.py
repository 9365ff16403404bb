"""Commands on nodes: answers, progress, cancelling, and nodes that do not behave."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.node_client import FakeNode, NodeKey, approve, node_of
from tests.integration.test_wire import READER, served
from tests.waiting import LIMIT_S, TimeLimit, until

from hobnob.client import Client, open_client
from hobnob.errors import RpcFailed
from hobnob.nodes import invocations


@asynccontextmanager
async def approved_node(home: Path) -> AsyncIterator[tuple[Client, FakeNode, str]]:
    async with served(home) as (url, token), open_client(url, token) as owner, node_of(url, token) as node:
        await approve(owner, node)
        yield owner, node, url


def invoke(owner: Client, node: FakeNode, key: str = "k", **more: Any) -> asyncio.Task[Any]:
    params = {"nodeId": node.key.id, "command": "system.which", "params": {"bins": ["git"]}}
    return asyncio.ensure_future(owner.call("node.invoke", **(params | {"idempotencyKey": key} | more)))


async def test_a_command_is_forwarded_and_its_answer_comes_back(tmp_path: Path) -> None:
    async with approved_node(tmp_path) as (owner, node, _):
        asking = invoke(owner, node, timeoutMs=8000)
        request = await node.asked()
        assert (request["command"], request["nodeId"]) == ("system.which", node.key.id)
        assert (json.loads(request["paramsJSON"]), request["timeoutMs"]) == ({"bins": ["git"]}, 8000)
        assert (await node.answer(request, {"bins": {"git": "/usr/bin/git"}}))["payload"] == {"ok": True}
        answer = await asking
        assert answer["payload"] == {"bins": {"git": "/usr/bin/git"}}
        assert json.loads(answer["payloadJSON"]) == answer["payload"]


async def test_an_error_of_the_node_is_reported_as_its_own(tmp_path: Path) -> None:
    async with approved_node(tmp_path) as (owner, node, _):
        asking = invoke(owner, node)
        error = {"code": "NOPE", "message": "I would rather not."}
        await node.answer(await node.asked(), None, ok=False, error=error)
        with pytest.raises(RpcFailed, match="I would rather not"):
            await asking


@pytest.mark.promise("nodes.bounded_answers")
async def test_a_second_answer_is_ignored(tmp_path: Path) -> None:
    async with approved_node(tmp_path) as (owner, node, _):
        asking = invoke(owner, node)
        request = await node.asked()
        await node.answer(request, "first")
        assert (await node.answer(request, "second"))["payload"] == {"ok": True, "ignored": True}
        assert (await asking)["payload"] == "first"


@pytest.mark.promise("nodes.bounded_answers")
async def test_a_node_that_never_answers_is_given_up_and_told_and_a_late_answer_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = TimeLimit(monkeypatch)
    async with approved_node(tmp_path) as (owner, node, _):
        asking = invoke(owner, node, timeoutMs=TimeLimit.SECONDS * 1000)
        request = await node.asked()
        limit.expire()
        with pytest.raises(RpcFailed, match="did not answer within"):
            await asking
        assert (await node.heard("node.invoke.cancel"))["invokeId"] == request["id"]
        assert (await node.answer(request, "late"))["payload"]["ignored"]


@pytest.mark.promise("nodes.bounded_answers")
async def test_a_node_cannot_answer_for_another(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        async with node_of(url, token) as node, node_of(url, token, NodeKey()) as other:
            await approve(owner, node)
            asking = invoke(owner, node)
            request = await node.asked()
            forged = await other.call("node.invoke.result", id=request["id"], ok=True, payload="forged")
            assert forged["payload"]["ignored"]
            claimed = await other.call(
                "node.invoke.result", id=request["id"], nodeId=node.key.id, ok=True, payload="forged"
            )
            assert claimed["error"]["message"].startswith("nodeId mismatch")
            await node.answer(request, "true")
            assert (await asking)["payload"] == "true"


@pytest.mark.promise("nodes.bounded_answers")
@pytest.mark.parametrize("form", ["payload", "payloadJSON"])
async def test_an_answer_beyond_the_limit_is_refused_and_the_node_stays(tmp_path: Path, form: str) -> None:
    async with approved_node(tmp_path) as (owner, node, _):
        asking = invoke(owner, node)
        request = await node.asked()
        big = "x" * (invocations.MAX_RESULT_BYTES + 10)
        content = {"payload": big} if form == "payload" else {"payloadJSON": json.dumps(big)}
        await node.call("node.invoke.result", id=request["id"], ok=True, **content)
        with pytest.raises(RpcFailed, match=r"answered with .* bytes; the limit is"):
            await asking
        assert (await owner.call("node.describe", nodeId=node.key.id))["connected"]


@pytest.mark.promise("nodes.bounded_answers")
async def test_a_node_that_sends_a_hundred_megabytes_is_disconnected_and_its_commands_fail_at_once(
    tmp_path: Path,
) -> None:
    async with approved_node(tmp_path) as (owner, node, _):
        asking = invoke(owner, node)
        await node.asked()
        head = b"\x81\xff" + (100 * 1024 * 1024).to_bytes(8, "big") + bytes(4)  # the head of such a frame
        node.socket.transport.write(head)
        await node.socket.wait_closed()
        assert node.socket.close_code == 1009
        with pytest.raises(RpcFailed, match="disconnected before it answered"):
            await asking
        assert (await owner.call("node.describe", nodeId=node.key.id))["connected"] is False


@pytest.mark.parametrize("nonsense", ["{", "[" * 200 + "]" * 200])
async def test_an_answer_that_is_not_json_is_an_error_of_the_node(tmp_path: Path, nonsense: str) -> None:
    async with approved_node(tmp_path) as (owner, node, _):
        asking = invoke(owner, node)
        await node.call("node.invoke.result", id=(await node.asked())["id"], ok=True, payloadJSON=nonsense)
        with pytest.raises(RpcFailed, match="not JSON"):
            await asking


async def test_a_node_that_leaves_fails_its_commands_at_once(tmp_path: Path) -> None:
    async with approved_node(tmp_path) as (owner, node, _):
        asking = invoke(owner, node)
        await node.asked()
        await node.socket.close()
        with pytest.raises(RpcFailed, match="disconnected before it answered"):
            await asking
        with pytest.raises(RpcFailed, match="is not connected"):
            await invoke(owner, node, key="another")


@pytest.mark.promise("nodes.asked_once")
async def test_the_same_key_asks_the_node_once(tmp_path: Path) -> None:
    async with approved_node(tmp_path) as (owner, node, _):
        asking = [invoke(owner, node), invoke(owner, node)]
        await node.answer(await node.asked(), "once")
        assert [(await each)["payload"] for each in asking] == ["once", "once"]
        assert (await invoke(owner, node))["payload"] == "once"
        assert node.requests.empty()
        with pytest.raises(RpcFailed, match="used for another call"):
            await invoke(owner, node, params={"bins": ["ls"]})


@pytest.mark.promise("nodes.asked_once")
async def test_an_answer_is_kept_across_a_restart_and_one_that_is_missing_is_not_asked_for_again(
    tmp_path: Path,
) -> None:
    async with approved_node(tmp_path) as (owner, node, _):
        asking = invoke(owner, node)
        await node.answer(await node.asked(), "kept")
        await asking
        lost = invoke(owner, node, key="lost")
        await node.asked()
        lost.cancel()
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        async with node_of(url, token, node.key):
            assert (await invoke(owner, node))["payload"] == "kept"
            with pytest.raises(RpcFailed, match=r"its outcome is unknown|disconnected|cancelled"):
                await invoke(owner, node, key="lost")


async def test_what_was_never_sent_may_be_tried_again_under_the_same_key(tmp_path: Path) -> None:
    key = NodeKey()
    async with served(tmp_path) as (url, token), open_client(url, token) as owner:
        async with node_of(url, token, key) as node:
            await approve(owner, node)
        await until(lambda: node.socket.close_code is not None)
        with pytest.raises(RpcFailed, match="is not connected"):
            await invoke(owner, node)
        async with node_of(url, token, key) as node:
            asking = invoke(owner, node)
            await node.answer(await node.asked(), "now")
            assert (await asking)["payload"] == "now"


async def test_progress_is_forwarded_in_order_and_bounded(tmp_path: Path) -> None:
    async with approved_node(tmp_path) as (owner, node, _):
        asking = invoke(owner, node)
        request = await node.asked()

        async def chunk(seq: int, text: str) -> Any:
            names = {"invokeId": request["id"], "nodeId": node.key.id}
            return (await node.call("node.invoke.progress", **names, seq=seq, chunk=text))["payload"]

        assert await chunk(0, "one") == {"ok": True}
        assert (await chunk(0, "one again"))["ignored"]
        assert (await chunk(1, "x" * (invocations.MAX_CHUNK_CHARS + 1)))["ignored"]
        assert await chunk(2, "two") == {"ok": True}
        await node.answer(request, "done")
        await asking
        assert (await chunk(3, "three"))["ignored"]
        seen = []
        while not owner.events.empty():
            event = owner.events.get_nowait()
            if event and event["event"] == "node.invoke.progress":
                seen.append((event["payload"]["seq"], event["payload"]["chunk"]))
        assert seen == [(0, "one"), (2, "two")]


async def test_a_command_can_be_cancelled_by_the_one_who_invoked_it(tmp_path: Path) -> None:
    async with approved_node(tmp_path) as (owner, node, _):
        asking = invoke(owner, node)
        request = await node.asked()
        assert await owner.call("node.invoke.cancel", idempotencyKey="other") == {"cancelled": False}
        assert await owner.call("node.invoke.cancel", idempotencyKey="k") == {"cancelled": True}
        assert (await node.heard("node.invoke.cancel"))["invokeId"] == request["id"]
        with pytest.raises(RpcFailed, match="cancelled"):
            await asking


async def test_running_programs_needs_admin_and_a_note_needs_write(tmp_path: Path) -> None:
    tokens = [READER, {"name": "writer", "token": "writers-token", "scopes": ["operator.write"]}]
    settings = {"gateway": {"port": 0, "auth": {"tokens": tokens}}}
    async with served(tmp_path, settings) as (url, token), open_client(url, token) as owner:
        async with node_of(url, token) as node, open_client(url, "writers-token") as writer:
            await approve(owner, node)
            for command in ("system.run", "system.which"):
                with pytest.raises(RpcFailed, match=r"missing scope: operator\.admin"):
                    await invoke(writer, node, command=command)
            asking = invoke(writer, node, command="system.notify")
            await node.answer(await node.asked(), {})
            assert (await asking)["ok"]


async def test_parameters_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    async with approved_node(tmp_path) as (owner, node, _):
        with pytest.raises(RpcFailed, match="parameters have"):
            await invoke(owner, node, params={"x": "y" * (invocations.MAX_PARAMS_BYTES + 1)})


async def test_a_node_has_so_many_commands_at_a_time(tmp_path: Path) -> None:
    async with approved_node(tmp_path) as (owner, node, _):
        asking = [invoke(owner, node, key=str(n)) for n in range(invocations.MAX_IN_FLIGHT)]
        for _ in asking:
            await node.asked()
        with pytest.raises(RpcFailed, match="works on 64 commands already"):
            await invoke(owner, node, key="one more")
        await node.socket.close()
        async with asyncio.timeout(LIMIT_S):
            assert all(
                isinstance(e, RpcFailed) for e in await asyncio.gather(*asking, return_exceptions=True)
            )


@pytest.mark.promise("nodes.stock_host")
async def test_the_calls_of_the_stock_host_are_answered(tmp_path: Path) -> None:
    async with approved_node(tmp_path) as (_, node, _url):
        assert (await node.event("node.host.stats", load=1))["payload"] == {"ok": True}
        inventory = await node.call(
            "node.runnerInventory.update", protocolFeatures=["a"], workerHost={"enabled": False}
        )
        assert inventory["payload"] == {"nodeId": node.key.id}
        assert (await node.call("node.skills.update", skills=[]))["payload"]["skills"] == []
        assert (await node.call("node.pluginTools.update", tools=[]))["payload"]["tools"] == []
