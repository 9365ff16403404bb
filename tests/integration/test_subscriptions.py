"""What clients hear, and how they go on from where they were."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_wire import frame, served
from tests.waiting import LIMIT_S
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from hobnob.api import event_frames
from hobnob.api.auth import owner_token
from hobnob.api.server import announce_shutdown, open_server
from hobnob.api.transcript_feed import TranscriptFeed
from hobnob.client import Client, open_client
from hobnob.errors import RpcFailed
from hobnob.gateway import Gateway, api_services
from hobnob.keys import parse
from hobnob.store import entries, sessions
from hobnob.testing import OWNER, calls, rehearse, say, script
from hobnob.tools import Context, tool
from hobnob.types import Entry, Session

MAIN = "agent:main:main"


@asynccontextmanager
async def gateway_of(
    home: Path, settings: Any = None, **more: Any
) -> AsyncIterator[tuple[Gateway, str, str]]:
    settings = {"gateway": {"port": 0}, **(settings or {})}
    async with rehearse(home, settings, **more) as gateway, open_server(api_services(gateway)) as url:
        yield gateway, url, owner_token(gateway.config)


@asynccontextmanager
async def raw(url: str, token: str, protocol: int = 4) -> AsyncIterator[ClientConnection]:
    """A connection that was let in, read frame by frame."""
    async with connect(url, compression=None) as socket:
        await frame(socket)
        params = {"minProtocol": protocol, "maxProtocol": protocol, "auth": {"token": token}}
        await ask(socket, "connect", **params)
        yield socket


async def ask(socket: ClientConnection, method: str, **params: Any) -> Any:
    await socket.send(json.dumps({"type": "req", "id": method, "method": method, "params": params}))
    while (answer := await frame(socket)).get("id") != method:
        pass
    assert answer["ok"], answer
    return answer["payload"]


async def heard(client: Client, event: str, **fields: Any) -> Any:
    """The next event of that name whose payload has these fields."""
    async with asyncio.timeout(LIMIT_S):
        while (found := await client.events.get()) is not None:
            if found["event"] == event and fields.items() <= found["payload"].items():
                return found["payload"]
    raise AssertionError("the connection is over")


def session_of(key: str) -> Session:
    return Session.of(parse(key))


@pytest.mark.promise("gateway.subscribe_one", "gateway.unsubscribe_one")
async def test_whoever_reads_a_session_hears_each_message_of_it(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, url, token), open_client(url, token) as client:
        await say(gateway, "say one")
        told = await client.call("sessions.messages.subscribe", key="main")
        assert (told["key"], told["after"]) == (MAIN, 2)
        await say(gateway, "say two")
        first, second = await heard(client, "session.message"), await heard(client, "session.message")
        assert (first["messageSeq"], first["message"]["content"]) == (3, "say two")
        assert (second["messageSeq"], second["message"]["content"][0]["text"]) == (4, "two")
        assert second["runId"] == first["runId"]
        await client.call("sessions.messages.unsubscribe", key="main")
        await say(gateway, "say three")
        await client.call("health")
        rest = [client.events.get_nowait() for _ in range(client.events.qsize())]
        assert [e for e in rest if e and e["event"] == "session.message"] == []


async def test_a_client_hears_nothing_of_sessions_it_has_nothing_to_do_with(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, url, token), open_client(url, token) as client:
        await say(gateway, "say one")
        await client.call("health")
        assert {e["event"] for e in [client.events.get_nowait()] if e} == {"connect.challenge"}
        assert client.events.empty()


async def test_after_a_place_what_was_missed_comes_first_and_nothing_twice(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, url, token):
        session = await gateway.store.write(sessions.ensure, session_of(MAIN))

        def add(tx: Any, first: int, last: int) -> None:
            for number in range(first, last):
                entries.append(tx, session.session_id, {"role": "user", "content": str(number)})

        await gateway.store.write(add, 1, 451)  # more than two pages of it
        async with open_client(url, token) as client:
            await client.call("sessions.messages.subscribe", key=MAIN, after=7)
            await gateway.store.write(add, 451, 501)
            seen = [(await heard(client, "session.message"))["messageSeq"] for _ in range(493)]
            assert seen == list(range(8, 501))


async def test_after_a_reset_the_new_transcript_is_told_from_its_start(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, url, token), open_client(url, token) as client:
        await say(gateway, "say old")
        told = await client.call("sessions.messages.subscribe", key="main")
        await client.call("sessions.reset", key="main")
        await say(gateway, "say new")
        async with open_client(url, token) as later:
            await later.call("sessions.messages.subscribe", key="main", after=2, sessionId=told["sessionId"])
            message = await heard(later, "session.message")
            assert (message["messageSeq"], message["message"]["content"]) == (1, "say new")


@pytest.mark.promise("gateway.subscribe_all")
async def test_whoever_watches_hears_which_sessions_change_and_how(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (_, url, token), open_client(url, token) as client:
        await client.call("sessions.subscribe")
        await client.call("sessions.create", key="agent:main:dashboard:1", label="Board")
        made = await heard(client, "sessions.changed", reason="create")
        assert (made["label"], made["archived"]) == ("Board", False)
        await client.call("agent", message="say hi", sessionKey="agent:main:dashboard:1", idempotencyKey="k")
        assert (await heard(client, "sessions.changed", reason="send"))["runId"] == "k"
        assert (await heard(client, "sessions.changed", phase="start"))["status"] == "running"
        assert (await heard(client, "sessions.changed", phase="message"))["messageSeq"] == 2
        assert (await heard(client, "sessions.changed", phase="end"))["outcome"] == "ok"
        await client.call("sessions.patch", key="agent:main:dashboard:1", label="Other")
        assert (await heard(client, "sessions.changed", reason="patch"))["label"] == "Other"
        for method, reason in (("archive", "archive"), ("restore", "restore"), ("delete", "delete")):
            await client.call(f"sessions.{method}", key="agent:main:dashboard:1")
            assert await heard(client, "sessions.changed", reason=reason)


async def test_an_event_carries_what_changed_and_not_the_whole_session(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, url, token), open_client(url, token) as client:
        await client.call("sessions.subscribe")
        await client.call("sessions.messages.subscribe", key=(await first_session(client)))
        await say(gateway, "say hi")
        message = await heard(client, "session.message")
        changed = await heard(client, "sessions.changed", phase="end")
        assert len(json.dumps(message)) < 800
        assert len(json.dumps(changed)) < 400


async def first_session(client: Client) -> str:
    await client.call("sessions.create", key=MAIN)
    return MAIN


async def test_watchers_hear_how_agents_talk_to_each_other(tmp_path: Path) -> None:
    settings = {
        "agents": {"list": [{"id": "main"}, {"id": "helper"}]},
        "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
    }
    async with gateway_of(tmp_path, settings) as (gateway, url, token), open_client(url, token) as client:
        await gateway.store.write(sessions.ensure, session_of("agent:helper:main"))
        await client.call("sessions.subscribe")
        await say(gateway, "ask helper: what is 6 * 7?")
        begun = await heard(client, "exchange.changed", state="open")
        assert (begun["requester"], begun["target"]) == (MAIN, "agent:helper:main")
        assert (await heard(client, "exchange.changed", state="done"))["id"] == begun["id"]


async def test_tools_are_heard_of_as_they_start_and_end(tmp_path: Path) -> None:
    @tool()
    async def shout(context: Context, word: str) -> str:
        """Shout."""
        return word.upper()

    settings = script(calls("shout", word="hey"), "Done.")
    async with (
        gateway_of(tmp_path, settings, tools=[shout]) as (gateway, url, token),
        open_client(url, token) as client,
    ):
        await client.call("sessions.create", key=MAIN)
        await client.call("sessions.messages.subscribe", key=MAIN)
        await say(gateway, "go")
        begun = await heard(client, "session.tool")
        assert (begun["data"]["phase"], begun["data"]["args"]) == ("start", {"word": "hey"})
        ended = await heard(client, "session.tool")
        assert (ended["data"]["phase"], ended["data"]["isError"]) == ("result", False)
        assert ended["data"]["result"] == {"content": [{"type": "text", "text": "HEY"}]}


async def test_the_result_of_a_tool_is_heard_without_secrets_and_not_longer_than_in_the_history(
    tmp_path: Path,
) -> None:
    @tool()
    async def leak(context: Context) -> str:
        """Leak."""
        return "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD " + "x" * 100_000

    settings = script(calls("leak"), "Done.")
    async with (
        gateway_of(tmp_path, settings, tools=[leak]) as (gateway, url, token),
        open_client(url, token) as client,
    ):
        await client.call("sessions.create", key=MAIN)
        await client.call("sessions.messages.subscribe", key=MAIN)
        await say(gateway, "go")
        await heard(client, "session.tool")
        ended = await heard(client, "session.tool")
        [part] = ended["data"]["result"]["content"]
        assert "uvwxyz" not in part["text"]
        assert len(part["text"]) < 5_000


async def test_secrets_do_not_reach_listeners(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, url, token), open_client(url, token) as client:
        await client.call("sessions.create", key=MAIN)
        await client.call("sessions.messages.subscribe", key=MAIN)
        await say(gateway, "my key is sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD")
        assert "abcdefghijklmnop" not in json.dumps(await heard(client, "session.message"))
        assert "abcdefghijklmnop" not in json.dumps(await heard(client, "chat", state="final"))


async def test_a_client_of_the_older_protocol_gets_the_answer_so_far_each_time(tmp_path: Path) -> None:
    async with (
        gateway_of(tmp_path, script("One two three.")) as (_, url, token),
        raw(url, token, protocol=3) as socket,
    ):
        await ask(socket, "chat.send", sessionKey="main", message="go", idempotencyKey="k")
        whole: list[str] = []
        while True:
            payload = (await frame(socket)).get("payload", {})
            if payload.get("state") == "delta" and "message" in payload:
                whole.append(payload["message"]["content"][0]["text"])
            if payload.get("state") == "final":
                break
        assert whole
        assert whole[-1] == "One two three."
        assert all(later.startswith(earlier) for earlier, later in pairwise(whole))


async def test_a_client_that_never_reads_is_sent_away_and_comes_back_for_the_rest(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, url, token):
        session = await gateway.store.write(sessions.ensure, session_of(MAIN))
        body = "x" * 3900

        def add(tx: Any, count: int) -> None:
            for _ in range(count):
                entries.append(tx, session.session_id, {"role": "user", "content": body})

        async with raw(url, token) as slow:
            await ask(slow, "sessions.messages.subscribe", key=MAIN, after=0)
            slow.transport.pause_reading()
            async with open_client(url, token) as quick:
                await quick.call("sessions.messages.subscribe", key=MAIN, after=0)
                lost = gateway.hub.lost
                written = 0
                while gateway.hub.lost == lost:
                    await gateway.store.write(add, 100)
                    written += 100
                    seen = [(await heard(quick, "session.message"))["messageSeq"] for _ in range(100)]
                    assert seen == list(range(written - 99, written + 1))  # the others are not held up
            slow.transport.resume_reading()
            last = 0
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    found = await frame(slow)
                    if found.get("event") == "session.message":
                        assert found["payload"]["messageSeq"] == last + 1
                        last += 1
            if closed.value.rcvd is not None:  # else there was no room for saying it
                assert (closed.value.rcvd.code, "slow consumer" in closed.value.rcvd.reason) == (1008, True)
        assert 0 < last < written
        async with open_client(url, token) as again:
            await again.call("sessions.messages.subscribe", key=MAIN, after=last)
            rest = [(await heard(again, "session.message"))["messageSeq"] for _ in range(written - last)]
            assert rest == list(range(last + 1, written + 1))


async def test_one_event_is_encoded_once_however_many_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    encode = event_frames.encode_open

    def counting(name: str, payload: Any) -> str:
        made.append(name)
        return encode(name, payload)

    async with gateway_of(tmp_path) as (gateway, url, token):
        await say(gateway, "say first")
        async with asyncio.TaskGroup() as group:
            clients = [Client(url, token) for _ in range(20)]
            for client in clients:
                group.create_task(client.connect())
        for client in clients:
            await client.call("sessions.messages.subscribe", key=MAIN)
        await say(gateway, "say second")
        for client in clients:  # whoever has this one has caught up
            await heard(client, "session.message", messageSeq=4)
        monkeypatch.setattr(event_frames, "encode_open", counting)
        await say(gateway, "say third")
        for client in clients:
            assert (await heard(client, "session.message"))["messageSeq"] == 5
            assert (await heard(client, "session.message"))["messageSeq"] == 6
            await client.close()
        assert made.count("session.message") == 2


async def test_those_connected_are_told_that_the_gateway_leaves(tmp_path: Path) -> None:
    async with rehearse(tmp_path, {"gateway": {"port": 0}}) as gateway:
        services = api_services(gateway)
        async with open_server(services) as url, open_client(url, owner_token(gateway.config)) as client:
            announce_shutdown(services, "going home")
            assert (await heard(client, "shutdown"))["reason"] == "going home"


async def test_those_who_watch_hear_who_comes_and_goes(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, token), open_client(url, token) as client:
        await client.call("sessions.subscribe")
        async with open_client(url, "read-only") as other:
            assert len((await heard(client, "presence", total=2))["presence"]) == 2
            listed = await other.call("system-presence")
            assert [row["mode"] for row in listed] == ["gateway", "cli", "cli"]
        assert await heard(client, "presence", total=1)


async def test_subscribing_needs_somebody_who_can_be_told(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, url, token), open_client(url, token) as client:
        await say(gateway, "say hi")
        with pytest.raises(RpcFailed, match="no session agent:main:hook:none"):
            await client.call("sessions.messages.subscribe", key="hook:none")


async def test_who_does_not_see_both_sides_does_not_hear_of_an_exchange(tmp_path: Path) -> None:
    narrow = {"name": "n", "token": "for-helper-only", "scopes": ["operator.read"], "agents": ["helper"]}
    settings = {
        "gateway": {"port": 0, "auth": {"tokens": [narrow]}},
        "agents": {"list": [{"id": "main"}, {"id": "helper"}]},
        "tools": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
    }
    async with (
        gateway_of(tmp_path, settings) as (gateway, url, token),
        open_client(url, token) as owner,
        open_client(url, "for-helper-only") as helper,
    ):
        await gateway.store.write(sessions.ensure, session_of("agent:helper:main"))
        for client in (owner, helper):
            await client.call("sessions.subscribe")
        await say(gateway, "ask helper: what is 6 * 7?")
        await heard(owner, "exchange.changed", state="done")
        await helper.call("health")
        told = [helper.events.get_nowait() for _ in range(helper.events.qsize())]
        assert "sessions.changed" in {e["event"] for e in told if e}
        assert "agent:main:main" not in json.dumps(told)


async def test_a_client_that_is_no_longer_there_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hobnob.api.server.PING_S", 1.0)
    async with rehearse(tmp_path, {"gateway": {"port": 0}}) as gateway:
        services = api_services(gateway)
        async with open_server(services) as url, raw(url, owner_token(gateway.config)) as socket:
            assert len(services.clients) == 1
            socket.transport.pause_reading()  # it does not answer any more
            async with asyncio.timeout(LIMIT_S):
                while len(services.clients):
                    await asyncio.sleep(0.02)
            socket.transport.resume_reading()


async def test_clients_that_leave_amid_events_are_nobody_elses_trouble(tmp_path: Path) -> None:
    @tool()
    async def work(context: Context) -> str:
        """Work."""
        return "worked"

    steps = [step for _ in range(40) for step in (calls("work"), "Done.")]
    async with gateway_of(tmp_path, script(*steps), tools=[work]) as (gateway, url, token):
        await client_session(gateway)
        stopping = asyncio.Event()

        async def come_and_go() -> None:
            while not stopping.is_set():
                async with raw(url, token) as socket:
                    await ask(socket, "sessions.messages.subscribe", key=MAIN)
                    await socket.close()

        async with open_client(url, token) as steady, asyncio.TaskGroup() as group:
            await steady.call("sessions.messages.subscribe", key=MAIN)
            for _ in range(6):
                group.create_task(come_and_go())
            for _ in range(12):
                assert (await say(gateway, "go")).outcome == "ok"
            stopping.set()
            seen = [(await heard(steady, "session.message"))["messageSeq"] for _ in range(48)]
            assert seen == list(range(1, 49))


async def client_session(gateway: Gateway) -> None:
    await gateway.store.write(sessions.ensure, session_of(MAIN))


async def test_a_session_that_is_deleted_while_it_is_caught_up_with_ends_only_that(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, url, token), open_client(url, token) as client:
        session = await gateway.store.write(sessions.ensure, session_of(MAIN))

        def add(tx: Any) -> None:
            for _ in range(2000):
                entries.append(tx, session.session_id, {"role": "user", "content": "x" * 500})

        await gateway.store.write(add)
        await client.call("sessions.messages.subscribe", key=MAIN, after=0)
        await gateway.store.write(gateway.effects.delete_session, MAIN)
        assert (await client.call("health"))["ok"] is True
        assert MAIN not in gateway.hub.by_topic


async def test_a_connection_hears_of_the_last_so_many_sessions_it_had_do_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hobnob.api.websocket.MAX_FOLLOWED", 5)
    async with gateway_of(tmp_path) as (gateway, url, token), open_client(url, token) as client:
        for number in range(12):
            await client.ask("say hi", f"hook:{number}")
        assert len(gateway.hub.by_topic) == 5


async def test_a_session_that_is_deleted_and_made_again_is_read_on(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (_, url, token), open_client(url, token) as client:
        await client.ask("say one", "hook:side")
        await client.call("sessions.messages.subscribe", key="hook:side")
        await client.call("sessions.delete", key="hook:side")
        await client.call("chat.send", sessionKey="hook:side", message="say two", idempotencyKey="again")
        answer = await heard(client, "session.message", messageSeq=2)
        assert answer["message"]["content"] == [{"type": "text", "text": "two"}]


async def test_two_subscriptions_in_one_burst_miss_nothing(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as (gateway, url, token), open_client(url, token) as client:
        await say(gateway, "say one")
        await asyncio.gather(
            client.call("sessions.messages.subscribe", key=MAIN, after=0),
            client.call("sessions.messages.subscribe", key=MAIN),
        )
        assert (await heard(client, "session.message"))["messageSeq"] == 1
        assert (await heard(client, "session.message"))["messageSeq"] == 2


async def test_a_feed_passes_each_entry_on_once_through_two_resets(tmp_path: Path) -> None:
    """Both resets are still queued when catching up has reached the newest transcript."""
    async with gateway_of(tmp_path) as (gateway, _, __):
        services = api_services(gateway)
        principal = services.auth.by_name("owner")
        first = await gateway.store.write(sessions.ensure, session_of(MAIN))
        queue = gateway.hub.subscribe(topics_only=True)
        queue.follow(MAIN)
        for _ in range(2):
            newest = await gateway.sessions.reset(OWNER, MAIN)

        def add(tx: Any) -> None:
            for number in range(3):
                entries.append(tx, newest.session_id, {"role": "user", "content": f"{number}"})

        await gateway.store.write(add)
        feed = TranscriptFeed(services, principal, MAIN, first.session_id)
        passed_on = [entry.seq async for entry in feed.catch_up()]
        while len(queue):
            news = feed.take(await queue.next())  # type: ignore[arg-type]
            passed_on += [news.seq] if isinstance(news, Entry) else []
        assert passed_on == [1, 2, 3]


async def test_a_feed_passes_each_entry_on_once_when_the_session_was_created_again(tmp_path: Path) -> None:
    """The deletion is still queued when catching up has reached the new transcript."""
    async with gateway_of(tmp_path) as (gateway, _, __):
        services, key = api_services(gateway), "agent:main:hook:side"
        first = await gateway.store.write(sessions.ensure, session_of(key))
        queue = gateway.hub.subscribe()
        await gateway.sessions.delete(OWNER, key)

        def create_again(tx: Any) -> None:
            session = sessions.ensure(tx, session_of(key))
            entries.append(tx, session.session_id, {"role": "user", "content": "hello"})

        await gateway.store.write(create_again)
        feed = TranscriptFeed(services, services.auth.by_name("owner"), key, first.session_id)
        assert [entry.seq async for entry in feed.catch_up()] == [1]
        while len(queue):
            assert feed.take(await queue.next()) is None  # type: ignore[arg-type]
