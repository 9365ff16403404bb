"""The client: it goes on where it was when the gateway comes back."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import Gate
from tests.waiting import LIMIT_S
from websockets.asyncio.server import serve

from hobnob.api.auth import owner_token
from hobnob.api.server import open_server
from hobnob.client import MESSAGES, Client, open_client, open_sync_client
from hobnob.errors import ClientClosed, GatewayLost, GatewayUnreachable, RpcFailed, TurnFailed
from hobnob.gateway import Gateway, api_services
from hobnob.store import entries, sessions
from hobnob.testing import calls, rehearse, say, script
from hobnob.types import new_id

TOKEN = "the-token-of-this-gateway"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def served(home: Path, port: int, settings: Any = None, **more: Any) -> AsyncIterator[Gateway]:
    settings = {"gateway": {"port": port, "auth": {"token": TOKEN}}, **(settings or {})}
    async with rehearse(home, settings, **more) as gateway, open_server(api_services(gateway)):
        yield gateway


async def numbers(client: Client, key: str, count: int, after: int = 0) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(LIMIT_S):
        async for message in client.follow(key, after):
            found.append(message["messageSeq"])
            if len(found) == count:
                return found
    return found


async def test_asking_survives_a_restart_and_asks_once(tmp_path: Path) -> None:
    port, gate = free_port(), Gate()
    settings = script(calls("hold"), "Answered.")
    url = f"ws://127.0.0.1:{port}"
    async with served(tmp_path, port, settings, tools=[gate.tool]):
        client = Client(url, TOKEN)
        asking = asyncio.create_task(client.ask("go"))
        await gate.reached.wait()
    gate.open.set()
    async with served(tmp_path, port, settings, tools=[gate.tool]) as gateway:
        answer = await asking
        assert answer.text == str(answer) == "Answered."
        session = await gateway.store.read(sessions.get, "agent:main:main")
        history = await gateway.store.read(entries.history, session.session_id)
        assert [entry.role for entry in history] == ["user", "assistant", "toolResult", "assistant"]
        await client.close()


async def test_a_reply_names_its_run_and_its_session(tmp_path: Path) -> None:
    port = free_port()
    async with served(tmp_path, port), open_client(f"ws://127.0.0.1:{port}", TOKEN) as client:
        reply = await client.ask("say hi", "hook:shop", idempotencyKey="k")
    assert (reply.text, reply.run_id, reply.session_key) == ("hi", "k", "agent:main:hook:shop")
    assert f"{reply}" == "hi"
    assert reply.payload["status"] == "ok"


async def test_asking_raises_when_the_turn_failed(tmp_path: Path) -> None:
    port = free_port()
    settings = {"agents": {"defaults": {"model": "nowhere/x"}}}
    async with served(tmp_path, port, settings), open_client(f"ws://127.0.0.1:{port}", TOKEN) as client:
        with pytest.raises(TurnFailed, match="nowhere/x"):
            await client.ask("hi")


async def test_waiting_survives_a_restart(tmp_path: Path) -> None:
    port, gate = free_port(), Gate()
    settings = script(calls("hold"), "Answered.")
    async with served(tmp_path, port, settings, tools=[gate.tool]):
        client = Client(f"ws://127.0.0.1:{port}", TOKEN)
        await client.connect()
        accepted = await client.call("chat.send", sessionKey="main", message="go", idempotencyKey=new_id())
        await gate.reached.wait()
        waiting = asyncio.create_task(client.wait(accepted["runId"]))
    gate.open.set()
    async with served(tmp_path, port, settings, tools=[gate.tool]):
        assert (await waiting)["outcome"] == "ok"
        await client.close()


@pytest.mark.promise("join.the_same_verbs_for_scripts")
async def test_a_script_runs_a_group_of_sub_agents_and_gets_all_results(tmp_path: Path) -> None:
    port = free_port()
    async with served(tmp_path, port), open_client(f"ws://127.0.0.1:{port}", TOKEN) as client:
        async with client.group(timeout_s=LIMIT_S, concurrency=3) as group:
            runs = [group.spawn(f"what is {n} + 1?") for n in range(7)]
            first = await runs[0]
            schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
            typed = group.spawn('call structured_output {"n": 3}', outputSchema=schema)
        assert [run.reply for run in runs] == [f"{n} + 1 = {n + 1}" for n in range(7)]
        assert (first["reply"], typed.structured, typed.status) == ("0 + 1 = 1", {"n": 3}, "ok")


async def test_a_group_returns_what_is_there_when_its_time_is_over(tmp_path: Path) -> None:
    port, gate = free_port(), Gate()
    async with (
        served(tmp_path, port, tools=[gate.tool]),
        open_client(f"ws://127.0.0.1:{port}", TOKEN) as client,
    ):
        async with client.group() as group:
            await group.spawn("say hi")
        async with client.group(timeout_s=0.5) as group:
            late = group.spawn("call hold")
        assert (late.status, late.reply) == ("timeout", "")
        gate.open.set()


async def test_a_spawn_of_a_group_that_is_refused_is_an_error_of_the_group(tmp_path: Path) -> None:
    port = free_port()
    async with served(tmp_path, port), open_client(f"ws://127.0.0.1:{port}", TOKEN) as client:
        with pytest.raises(RpcFailed, match="ghost"):
            async with client.group() as group:
                group.spawn("say hi", agentId="ghost")


async def test_following_survives_restarts_without_loss_or_repeat(tmp_path: Path) -> None:
    port = free_port()
    client = Client(f"ws://127.0.0.1:{port}", TOKEN)
    async with served(tmp_path, port) as gateway:
        await say(gateway, "say 0")
        following = asyncio.create_task(numbers(client, "main", 20))
        await say(gateway, "say 1")
    for number in range(2, 6):
        async with rehearse(tmp_path) as gateway:  # nobody can connect to this one
            await say(gateway, f"say {number}")
        async with served(tmp_path, port) as gateway:
            await say(gateway, f"say {number} again")
    async with served(tmp_path, port):
        assert await following == list(range(1, 21))
        await client.close()


async def test_five_hundred_clients_come_back_to_a_gateway_and_miss_nothing(tmp_path: Path) -> None:
    port = free_port()
    clients = [Client(f"ws://127.0.0.1:{port}", TOKEN) for _ in range(500)]
    async with served(tmp_path, port) as gateway:
        await say(gateway, "say one")
        following = [asyncio.create_task(numbers(client, "main", 4)) for client in clients]
        async with asyncio.timeout(LIMIT_S):
            while sum(map(len, gateway.hub.by_topic.values())) < 500:
                await asyncio.sleep(0.01)
    async with served(tmp_path, port) as gateway:
        await say(gateway, "say two")
        assert await asyncio.gather(*following) == [[1, 2, 3, 4]] * 500
        await asyncio.gather(*(client.close() for client in clients))


async def test_a_program_that_follows_slowly_still_gets_every_message(tmp_path: Path) -> None:
    port = free_port()
    async with served(tmp_path, port) as gateway:
        await say(gateway, "say hi")
        session = await gateway.store.read(sessions.get, "agent:main:main")

        def add(tx: Any, count: int) -> None:
            for _ in range(count):
                entries.append(tx, session.session_id, {"role": "user", "content": "x"})

        async with open_client(f"ws://127.0.0.1:{port}", TOKEN) as client:
            messages = client.follow("main", 0)
            assert (await anext(messages))["messageSeq"] == 1
            for _ in range(6):  # far more than are kept for it
                await gateway.store.write(add, MESSAGES // 4)
                await client.call("health")
            rest = [(await anext(messages))["messageSeq"] for _ in range(1 + 6 * (MESSAGES // 4))]
            assert rest == list(range(2, 3 + 6 * (MESSAGES // 4)))


async def test_a_plain_call_says_that_the_connection_broke(tmp_path: Path) -> None:
    port, gate = free_port(), Gate()
    async with served(tmp_path, port, script(calls("hold"), "x"), tools=[gate.tool]):
        client = Client(f"ws://127.0.0.1:{port}", TOKEN)
        await client.connect()
        calling = asyncio.create_task(client.call("agent", message="go", idempotencyKey="k"))
        await gate.reached.wait()
    with pytest.raises(GatewayLost):
        await calling
    with pytest.raises(GatewayLost):
        await client.call("health")


async def test_patience_ends(tmp_path: Path) -> None:
    client = Client(f"ws://127.0.0.1:{free_port()}", TOKEN, patience_s=0.2)
    with pytest.raises(GatewayUnreachable, match="No gateway answers"):
        await client.ask("hi")


async def test_a_wrong_token_is_not_tried_again(tmp_path: Path) -> None:
    port = free_port()
    async with served(tmp_path, port):
        client = Client(f"ws://127.0.0.1:{port}", "wrong")
        with pytest.raises(RpcFailed, match="unauthorized"):
            await client.ask("hi")


async def test_events_nobody_looks_at_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hobnob.client.EVENTS", 20)
    port = free_port()
    async with served(tmp_path, port), open_client(f"ws://127.0.0.1:{port}", TOKEN) as client:
        for _ in range(30):
            await client.ask("say hi")
        assert client.events.qsize() == 20


async def test_a_program_without_a_loop_can_ask_and_follow(tmp_path: Path) -> None:
    port = free_port()

    def program() -> list[str]:
        with open_sync_client(f"ws://127.0.0.1:{port}", TOKEN) as client:
            said = [client.ask("say one").text]
            run = client.call("chat.send", sessionKey="main", message="say two", idempotencyKey="k")["runId"]
            said.append(client.wait(run)["status"])
            messages = client.follow("main", 0)
            said += [str(next(messages)["messageSeq"]) for _ in range(4)]
            return said

    async with served(tmp_path, port) as gateway:
        assert owner_token(gateway.config) == TOKEN
        assert await asyncio.to_thread(program) == ["one", "ok", "1", "2", "3", "4"]


async def test_a_closed_client_stays_closed(tmp_path: Path) -> None:
    port = free_port()
    async with served(tmp_path, port) as gateway:
        await say(gateway, "say hi")
        client = Client(f"ws://127.0.0.1:{port}", TOKEN)
        messages = client.follow("main", 0)
        assert (await anext(messages))["messageSeq"] == 1
        await client.close()
        assert [m["messageSeq"] async for m in messages] in ([], [2])
        for again in (client.ask("hi"), client.wait("x"), client.connect()):
            with pytest.raises(ClientClosed):
                await again


async def test_two_who_follow_one_session_each_get_every_message(tmp_path: Path) -> None:
    port = free_port()
    async with served(tmp_path, port) as gateway, open_client(f"ws://127.0.0.1:{port}", TOKEN) as client:
        for number in range(10):
            await say(gateway, f"say {number}")
        following = [asyncio.create_task(numbers(client, "main", 40)) for _ in range(3)]
        for number in range(10):
            await say(gateway, f"say {number}")
            following.append(asyncio.create_task(numbers(client, "main", 40)))
        assert await asyncio.gather(*following) == [list(range(1, 41))] * 13
        async with asyncio.timeout(LIMIT_S):
            while gateway.hub.by_topic:  # nobody follows it any more, and the gateway hears of that
                await asyncio.sleep(0.01)


async def test_what_is_no_gateway_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hobnob.client._HANDSHAKE_TIMEOUT_S", 0.2)

    async def silent(connection: Any) -> None:
        await connection.wait_closed()

    async def babbling(connection: Any) -> None:
        await connection.send("hello there")
        await connection.wait_closed()

    for handler in (silent, babbling):
        async with serve(handler, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            with pytest.raises((GatewayUnreachable, GatewayLost)):
                await Client(f"ws://127.0.0.1:{port}", TOKEN).connect()
