"""Several gateways on one database, opened in one process: roles, and what each hears of the others."""

import asyncio
import base64
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from tests import postgres, stores
from tests.integration.helpers import ANN, three_agents
from tests.waiting import LIMIT_S, until

from hobnob.cluster import members
from hobnob.cluster.listener import CHANNEL, own_channel
from hobnob.cluster.messages import Packer, Unpacker
from hobnob.cluster.postgres import PostgresCluster, _boot_time, open_cluster
from hobnob.errors import NotFound, StoreError
from hobnob.events import AnswerDelta, EntryAppended, Event
from hobnob.gateway import Gateway
from hobnob.records import replace
from hobnob.store import turns
from hobnob.store.engine import postgres_server
from hobnob.store.engine.postgres import open_postgres
from hobnob.testing import OWNER, rehearse, say
from hobnob.types import Turn

pytestmark = pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself")
SLOW = "agent:ann:slow"
ROLE_LOCKS = 0x484F4252


@pytest.fixture
def url() -> str:
    return postgres.new_database()


@pytest.fixture
async def two(url: str, tmp_path: Path) -> AsyncIterator[tuple[Gateway, Gateway]]:
    async with two_gateways(url, tmp_path) as found:
        yield found


@asynccontextmanager
async def two_gateways(url: str, tmp_path: Path) -> AsyncIterator[tuple[Gateway, Gateway]]:
    async with AsyncExitStack() as stack:
        settings = three_agents() | {"store": {"url": url}}
        settings |= {"models": {"rehearsal": {"scripts": {SLOW: [{"delayMs": 3_600_000, "text": "late"}]}}}}
        found = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            own = settings | {"gateway": {"name": name}}
            found.append(await stack.enter_async_context(rehearse(tmp_path / name, own)))
        first, second = found
        await until(lambda: all(gateway.cluster.others == 1 for gateway in found))
        yield first, second


def roles(gateways: Iterable[Gateway]) -> list[str]:
    return sorted(role for gateway in gateways for role in cluster_of(gateway).roles)


def cluster_of(gateway: Gateway) -> PostgresCluster:
    assert isinstance(gateway.cluster, PostgresCluster)
    return gateway.cluster


async def test_every_role_is_led_by_one_gateway_also_after_its_connection_was_lost(
    two: tuple[Gateway, Gateway], url: str
) -> None:
    await until(lambda: "maintenance" in roles(two))
    query = f"select pg_terminate_backend(pid) from pg_locks where classid = {ROLE_LOCKS} and granted"
    assert postgres.execute(url, query)
    held = f"select count(*) from pg_locks where classid = {ROLE_LOCKS} and granted"

    def is_settled() -> bool:
        led = roles(two)
        [(locks,)] = postgres.execute(url, held)
        return "maintenance" in led and len(led) == len(set(led)) == locks

    await until(is_settled)


@pytest.fixture
def own_server() -> Iterator[postgres.Server]:
    """A server that a test may let crash."""
    postgres.require_server()
    server = postgres.start_server()
    server.prepare_template()
    yield server
    server.stop()


async def test_gateways_do_not_take_each_other_for_dead_when_a_process_of_the_database_crashes(
    own_server: postgres.Server, tmp_path: Path
) -> None:
    """The server then ends all connections and goes on, without having been started again."""
    async with two_gateways(postgres.new_database(on=own_server), tmp_path) as two:
        here, there = map(cluster_of, two)
        known_as = {here.gateway_id, there.gateway_id}
        await until(lambda: all(member.server_up_s > members.GRACE_S for member in here.members))
        backends, held = (here._backend, there._backend), threading.Event()
        there._thread.submit(held.wait)  # it is slow to connect again
        os.kill(backends[0], signal.SIGKILL)
        await until(lambda: here._backend != backends[0])
        looked_at = here._confirmed_at
        await until(lambda: here._confirmed_at > looked_at)
        held.set()
        await until(lambda: there._backend != backends[1])
        assert (await say(two[0], "say: still here", ANN)).reply == "still here"
        assert {here.gateway_id, there.gateway_id} == known_as == {m.gateway_id for m in here.members}


async def test_a_gateway_that_starts_while_the_others_connect_again_does_not_take_them_for_dead(
    own_server: postgres.Server, tmp_path: Path
) -> None:
    url = postgres.new_database(on=own_server)
    async with two_gateways(url, tmp_path) as two:
        here, there = map(cluster_of, two)
        known_as = {here.gateway_id, there.gateway_id}
        await until(lambda: all(member.server_up_s > members.GRACE_S for member in here.members))
        held = threading.Event()
        for each in (here, there):
            each._thread.submit(held.wait)  # they are slow to connect again
        os.kill(here._backend, signal.SIGKILL)
        async with started_cluster(url) as new:
            held.set()
            assert known_as < new.gateway_ids
            await until(lambda: here.gateway_ids == there.gateway_ids == known_as | {new.gateway_id})


@asynccontextmanager
async def started_cluster(url: str) -> AsyncIterator[PostgresCluster]:
    """One more member, as soon as the server accepts connections."""
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    store = await stack.enter_async_context(open_postgres(url))
                    yield await stack.enter_async_context(open_cluster(store, "new", "shared"))
                    return
                except StoreError:
                    await asyncio.sleep(0.02)


async def test_a_dead_gateway_whose_row_somebody_has_locked_keeps_no_other_from_its_beats(
    two: tuple[Gateway, Gateway], url: str
) -> None:
    here = cluster_of(two[0])
    backend = here._backend
    with closing(postgres_server.connect(url)) as connection:
        dead = members.join(connection, "dead", "dead", None, files="shared")
    row = f"select gateway_id from gateways where gateway_id = '{dead}'"
    with closing(postgres_server.connect(url)) as connection:
        connection.execute("begin")
        assert connection.execute(f"{row} for update".encode()).fetchall()
        await until(lambda: _boot_time() - here._opened_at > members.GRACE_S)  # it may remove others now
        for _ in range(3):
            beat = here._confirmed_at
            await until(lambda beat=beat: here._confirmed_at > beat)
        assert postgres.execute(url, row)
    await until(lambda: postgres.execute(url, row) == [])
    assert here._backend == backend


async def test_a_process_of_another_machine_is_not_known_to_have_ended(two: tuple[Gateway, Gateway]) -> None:
    """Names of hosts are not unique, and containers on one host have process ids of their own."""
    [member, _] = cluster_of(two[0]).members
    with subprocess.Popen(["true"]) as ended:
        member = replace(member, pid=ended.pid)
        await until(lambda: members.has_ended(member))  # also before its parent has asked for its exit code
        assert ended.returncode is None
    assert members.has_ended(member)
    assert not members.has_ended(replace(member, pid=os.getpid()))
    assert not members.has_ended(replace(member, machine="another boot pid:[4026531836]"))


async def test_a_gateway_that_is_being_drained_keeps_no_role_that_it_takes_meanwhile(
    two: tuple[Gateway, Gateway],
) -> None:
    here = cluster_of(two[0])
    await here.drain(here.gateway_id, on=True)
    look = asyncio.create_task(here._look())  # the beat that will tell of it is under way
    await asyncio.sleep(0)
    leading = asyncio.create_task(here.lead("a free role", asyncio.Event().wait))
    await look
    beat = here._confirmed_at
    await until(lambda: here._confirmed_at > beat)
    assert here.draining and not here.leads("a free role")
    leading.cancel()
    await asyncio.wait([leading])


async def test_turns_are_handed_over_at_a_stop_only_if_another_gateway_starts_turns(
    two: tuple[Gateway, Gateway],
) -> None:
    here, there = two
    assert here.runner.hands_over
    await here.cluster.drain(there.cluster.gateway_id, on=True)
    await until(lambda: not here.runner.hands_over)


@pytest.mark.promise("cluster.survives_the_database")
async def test_a_gateway_can_be_stopped_while_its_database_is_away(
    own_server: postgres.Server, tmp_path: Path
) -> None:
    url = postgres.new_database(on=own_server)
    settings = three_agents() | {"store": {"url": url}}
    settings |= {"models": {"rehearsal": {"scripts": {SLOW: [{"delayMs": 3_600_000, "text": "late"}]}}}}
    async with rehearse(tmp_path, settings) as gateway:
        await gateway.sessions.send(OWNER, SLOW, "go")
        await running(gateway)
        await gateway.sessions.send(OWNER, SLOW, "and then")
        own_server.halt()
        await until(lambda: not gateway.cluster.is_member)  # one turn ended, the other waits for its claim
    # it has stopped; the test would hang otherwise


async def test_an_outage_of_the_database_is_logged_once_however_long_it_lasts(
    own_server: postgres.Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "hobnob.cluster.postgres")

    def logged(level: str, text: str) -> int:
        return sum(each.levelname == level and text in each.message for each in caplog.records)

    settings = three_agents() | {"store": {"url": postgres.new_database(on=own_server)}}
    async with rehearse(tmp_path, settings):
        for outage in (1, 2):
            own_server.halt()
            await until(lambda outage=outage: logged("DEBUG", "no beat") >= 2 * outage)  # beats go on
            assert logged("WARNING", "no beat") == outage
            own_server.start()
            await until(lambda outage=outage: logged("INFO", "can be reached again") == outage)


async def test_a_client_of_another_gateway_gets_streamed_text_and_entries_in_order(
    two: tuple[Gateway, Gateway],
) -> None:
    here, there = two
    subscription = there.hub.subscribe(topics_only=True)
    subscription.follow(ANN)
    events: list[Event] = []

    async def listen() -> None:
        async for event in subscription:
            events.append(event)

    listening = asyncio.create_task(listen())
    for number in range(3):
        await say(here, f"say: number {number} of three", ANN)

    def texts() -> list[str]:
        return [event.entry.message["role"] for event in events if isinstance(event, EntryAppended)]

    await until(lambda: len(texts()) == 6)
    seqs = [event.entry.seq for event in events if isinstance(event, EntryAppended)]
    assert seqs == sorted(seqs)
    assert texts() == ["user", "assistant"] * 3
    assert "number 2 of three" in "".join(e.text for e in events if isinstance(e, AnswerDelta))
    listening.cancel()
    subscription.close()


async def test_a_gateway_that_listens_again_is_told_what_was_followed_meanwhile(
    two: tuple[Gateway, Gateway], url: str
) -> None:
    follows, streams = two
    follows.cluster.polls.clear()  # they would tell it too, seconds later
    listener = f'listen "{own_channel(streams.store.instance)}"'
    cut = f"select pg_terminate_backend(pid, 5000) from pg_stat_activity where query = '{listener}'"
    assert postgres.execute(url, cut) == [(True,)]
    with_text = follows.hub.subscribe(lambda event: isinstance(event, AnswerDelta), topics_only=True)
    with_text.follow(ANN)

    def heard() -> bool:
        streams.hub.publish_live(AnswerDelta(ANN, "t", "text"))
        return len(with_text) > 0

    await until(heard)
    with_text.close()


async def test_text_of_a_gateway_that_has_just_started_reaches_those_who_follow_from_its_beginning(
    url: str, tmp_path: Path
) -> None:
    """It goes on with a turn before it is told who follows."""
    async with two_gateways(url, tmp_path) as (here, there):
        subscription = here.hub.subscribe(topics_only=True)
        subscription.follow(SLOW)
        handler: Any = cluster_of(there)._mailbox._handlers["follow"]
        live = handler.__self__
        await until(lambda: SLOW in live._followed.get(cluster_of(here).gateway_id, ()))
        live._followed, live._early = {}, {}  # as at its start
        there.hub.publish_live(AnswerDelta(SLOW, "t", "", restart=True))
        for text in ("one ", "two "):
            there.hub.publish_live(AnswerDelta(SLOW, "t", text))
        cluster_of(there)._on_gap()
        await until(lambda: live._followed)
        there.hub.publish_live(AnswerDelta(SLOW, "t", "three"))
        seen = []
        async with asyncio.timeout(LIMIT_S):
            while "".join(each.text for each in seen) != "one two three":
                event = await subscription.next()
                assert isinstance(event, AnswerDelta)
                seen.append(event)
        assert [each.restart for each in seen].index(True) == 0


async def test_a_turn_that_runs_elsewhere_can_be_awaited_and_stopped(two: tuple[Gateway, Gateway]) -> None:
    here, there = two
    saying = asyncio.create_task(say(here, "go", SLOW))
    turn = await running(here)
    waiting = asyncio.create_task(there.sessions.wait(turn.turn_id, LIMIT_S))
    await there.sessions.abort(OWNER, SLOW)
    async with asyncio.timeout(LIMIT_S):
        assert (await waiting).outcome == (await saying).outcome == "cancelled"


async def test_who_waits_for_a_turn_hears_that_its_session_was_deleted_by_another_gateway(
    two: tuple[Gateway, Gateway],
) -> None:
    here, there = two
    asking = asyncio.create_task(say(here, "go", SLOW))
    turn = await running(here)
    waiting = asyncio.create_task(there.sessions.wait(turn.turn_id))
    joining = asyncio.create_task(there.sessions.waiters.enough([turn.turn_id], 1, 3_600))
    await until(lambda: turn.turn_id in there.sessions.waiters.unsettled())
    await here.sessions.delete(OWNER, SLOW)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(NotFound):
            await waiting
        await joining
        await asyncio.wait([asking])


async def test_notifications_of_somebody_who_may_not_read_the_tables_are_ignored_and_tell_him_nothing(
    two: tuple[Gateway, Gateway], url: str
) -> None:
    here, there = (cluster_of(gateway) for gateway in two)
    got: list[Any] = []
    there.on("said", got.append)
    postgres.execute(url, "create role stranger login")
    stranger = url.replace("hobnob:", "stranger:", 1)
    heard: list[str] = []
    with closing(psycopg.connect(stranger, autocommit=True)) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select key from message_key")
        connection.execute(f"listen {CHANNEL}")
        here.tell("said", "a secret")
        await until(lambda: got == ["a secret"])
        heard += [note.payload for note in connection.notifies(timeout=LIMIT_S, stop_after=1)]
        forged = orjson.dumps({"from": "x", "number": 1, "messages": [["said", "forged"]]}).decode()
        for payload in (*heard, forged, base64.b64encode(forged.encode()).decode(), "", "?"):
            connection.execute("select pg_notify(%s, %s)", (CHANNEL, payload))
    assert heard and not any("secret" in payload for payload in heard)
    here.tell("said", "the next one")
    await until(lambda: got == ["a secret", "the next one"])
    postgres.execute(url, "drop role stranger")


async def running(gateway: Gateway) -> Turn:
    """The turn that runs, once it does."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            for turn in await gateway.store.read(turns.open_turns):
                if turn.status == "running":
                    return turn
            await asyncio.sleep(0.01)


def test_messages_of_any_size_arrive_whole() -> None:
    sent: list[tuple[str, Any]] = [("small", n) for n in range(500)]
    sent += [("large", "ü\0" * 20_000), ("small", "last")]
    key = os.urandom(32)
    payloads = list(Packer("me", key, time.monotonic).pack(sent))
    assert max(len(payload.encode()) for payload in payloads) < 8_000
    unpacker = Unpacker(key, time.monotonic)
    got = [message for payload in payloads for message in unpacker.unpack(payload)[1]]
    assert got == sent


def test_a_message_is_taken_once_and_only_soon_and_by_gateways_that_ran_when_it_was_sent() -> None:
    key, clock = os.urandom(32), Clock()
    first, second = (next(Packer(sender, key, clock).pack([("small", 1)])) for sender in ("me", "you"))
    unpacker = Unpacker(key, clock)
    assert unpacker.unpack(first) == ("me", [("small", 1)])
    with pytest.raises(ValueError, match="sent again"):
        unpacker.unpack(first)
    clock.now += 10
    with pytest.raises(ValueError, match="before this gateway started"):
        Unpacker(key, clock).unpack(second)
    clock.now += 60
    with pytest.raises(ValueError, match="sent long ago"):
        unpacker.unpack(second)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now
