"""What is particular to PostgreSQL: several transactions at once, one gateway, a server that fails."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from tests import postgres, stores
from tests.cluster.harness import Link
from tests.integration.helpers import ANN, BOB, spawning_agents, three_agents, use, wait_until_idle
from tests.waiting import LIMIT_S, until

from hobnob import config
from hobnob.api.server import open_server
from hobnob.chat_types import Pairing
from hobnob.effects import Effects
from hobnob.errors import HobnobError, LabelTaken, NotAllowed, StoreError, StoreInUse, StoreTooNew
from hobnob.events import Change, EntryAppended
from hobnob.gateway import api_services
from hobnob.keys import parse
from hobnob.records import replace
from hobnob.sessions import InboundMessage, children
from hobnob.sessions.sending import TurnOptions
from hobnob.sessions.spawning import SpawnReceipt, SpawnRequest
from hobnob.sessions.waiters import refuse_deadlock
from hobnob.store import Store, Tx, deliveries, entries, exchanges, open_store, search, sessions, turns
from hobnob.store.chats import pairings
from hobnob.store.deliveries import Lane
from hobnob.store.engine import postgres as postgres_store
from hobnob.store.engine import postgres_server, statements
from hobnob.testing import OWNER, rehearse, say
from hobnob.types import Delivery, Exchange, Session, Turn, now_ms

pytestmark = pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself")


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture
def url() -> str:
    return postgres.new_database()


@pytest.fixture
def durable() -> Iterator[postgres.Server]:
    """A server of its own, which writes to the disk as in earnest and may be stopped."""
    postgres.require_server()
    server = postgres.start_server(durable=True)
    server.execute("create database d")
    yield server
    server.stop()


async def create(store: Store, key: str, **fields: Any) -> Session:
    return await store.write(sessions.create, Session.of(parse(key), **fields))


# -- one gateway


async def test_who_copies_a_database_keeps_gateways_out_and_is_kept_out_by_them(
    url: str, tmp_path: Path
) -> None:
    settings = three_agents() | {"store": {"url": url}}
    with contextlib.closing(postgres_server.connect(url)) as other:
        postgres_server.use(url, other, exclusively=True)
        with pytest.raises(StoreInUse):
            async with rehearse(tmp_path, settings):
                pass
    async with rehearse(tmp_path, settings) as gateway:
        with contextlib.closing(postgres_server.connect(url)) as other:
            with pytest.raises(StoreInUse) as refusal:
                postgres_server.use(url, other, exclusively=True)
        assert refusal.value.pid == os.getpid()
        assert f"in use by process {os.getpid()}" in refusal.value.message
        assert (await say(gateway, "say: still here", ANN)).reply == "still here"


async def test_a_gateway_whose_database_is_being_copied_writes_nothing_any_more(url: str) -> None:
    async with open_store(url) as store:
        session = await create(store, "agent:a:main")
        with copying(url):
            async with asyncio.timeout(LIMIT_S):
                with pytest.raises(StoreInUse):
                    while True:
                        await store.write(entries.append, session.session_id, said("x"))
                        await asyncio.sleep(0.05)


@contextlib.contextmanager
def copying(url: str) -> Iterator[None]:
    """Somebody else has the database, because its gateway lost its connection for a moment."""
    with contextlib.closing(postgres_server.connect(url)) as other:
        other.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name like 'hobnob gateway%' and datname = current_database()"
        )
        postgres_server.use(url, other, exclusively=True)
        yield


async def test_a_gateway_that_writes_nothing_any_more_is_not_ready(url: str, tmp_path: Path) -> None:
    settings = three_agents() | {"store": {"url": url}}
    async with (
        rehearse(tmp_path, settings) as gateway,
        open_server(api_services(gateway)) as address,
        aiohttp.ClientSession() as http,
    ):
        with copying(url):
            async with asyncio.timeout(LIMIT_S):
                while (answer := await http.get(f"{address}/readyz")).status == 200:
                    await asyncio.sleep(0.05)
            assert answer.status == 503
            assert "Restart this gateway when the copy is done" in await answer.text()
            await until(lambda: not gateway.cluster.is_member)  # others take over what it did
            await until(lambda: postgres.execute(url, "select gateway_id from gateways") == [])
            assert gateway.cluster.roles == []


async def test_what_the_server_refuses_is_told_from_a_server_that_cannot_be_reached(url: str) -> None:
    with pytest.raises(StoreError, match=r"refuses the connection: .*nope.* does not exist") as refusal:
        async with open_store(url.replace(urlsplit(url).path, "/nope")):
            pass
    assert refusal.value.fix is not None and "store.url" in refusal.value.fix


# -- schema


@pytest.mark.promise("store.newer_schema_refused")
async def test_a_database_of_a_newer_version_is_refused(url: str) -> None:
    postgres.execute(url, "insert into migrations values (9999, 'later', 'x', 0)")
    with pytest.raises(StoreTooNew, match="schema version is 9999"):
        async with open_store(url):
            pass


async def test_a_database_made_with_another_migration_is_refused(url: str) -> None:
    postgres.execute(url, "update migrations set sha256 = 'another' where number = 1")
    with pytest.raises(StoreError, match="migration 1"):
        async with open_store(url):
            pass


async def test_an_empty_database_gets_its_tables_once_however_many_processes_start(url: str) -> None:
    postgres.execute(url, "drop schema public cascade; create schema public")

    def migrate() -> None:
        with contextlib.closing(postgres_server.connect(url)) as connection:
            postgres_server.migrate(url, connection)

    await asyncio.gather(*(asyncio.to_thread(migrate) for _ in range(4)))
    [(applied,)] = postgres.execute(url, "select count(*) from migrations")
    assert applied == len(statements.migrations("postgres"))


async def test_messages_that_wait_are_sent_in_their_order_after_a_migration(url: str) -> None:
    """Those of a version that knew their order by their ids only."""
    older = [Delivery(session_key="agent:a:main", channel="irc", recipient="a", text=text) for text in "12"]
    async with open_store(url) as store:
        for delivery in reversed(older):
            await store.write(deliveries.create, delivery)
    postgres.execute(
        url,
        "alter table deliveries drop column rowid; create index deliveries_pending on deliveries (channel);"
        " delete from migrations where name like '%order_of_deliveries'",
    )
    async with open_store(url) as store:
        newer = replace(older[0], delivery_id="0", text="3")
        await store.write(deliveries.create, newer)
        for expected in [*older, newer]:
            head = await store.read(deliveries.head, Lane("irc", None, "a"))
            assert head == expected
            await store.write(deliveries.fail, head, "sent")


async def test_requests_that_wait_for_a_database_that_is_away_fail_together(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one after the other, each after the time that one may wait."""
    monkeypatch.setattr(postgres_store, "RECONNECT_S", 2.0)
    monkeypatch.setattr(postgres_store, "_RETRIED_S", 0.0)
    link, loop, ended_at = Link(postgres.require_server()), asyncio.get_running_loop(), list[float]()

    async def ask(request: Awaitable[Any]) -> None:
        with pytest.raises(StoreError):
            await request
        ended_at.append(loop.time())

    async with open_store(link.url(urlsplit(url).path.lstrip("/"))) as store:
        link.close()
        began = loop.time()
        requests = [create(store, f"agent:a:hook:{number}") for number in range(4)]
        await asyncio.gather(*(ask(each) for each in (*requests, store.read(sessions.page))))
        assert max(ended_at) - began < 2 * (min(ended_at) - began)


# -- several transactions at once


async def test_what_two_transactions_lock_in_opposite_order_is_done_by_both(url: str) -> None:
    async with open_store(url) as store:
        one, two = await create(store, "agent:a:main"), await create(store, "agent:b:main")

        def both(tx: Tx, first: Session, second: Session) -> None:
            tx.lock("session", first.key)
            tx.lock("session", second.key)
            for each in (one, two):
                entries.append(tx, each.session_id, said("x"))

        async with asyncio.timeout(LIMIT_S):
            for _ in range(10):
                await asyncio.gather(store.write(both, one, two), store.write(both, two, one))
        for each in (one, two):
            kept = await store.read(entries.history, each.session_id)
            assert [e.seq for e in kept] == list(range(1, 21))


async def test_no_gateway_takes_the_second_message_while_another_one_gives_back_the_first(
    tmp_path: Path, url: str
) -> None:
    effects = Effects(config.load(env={"HOBNOB_HOME": str(tmp_path)}), set)
    first, second = (Delivery(session_key="agent:a:main", channel="irc", recipient="a", text=t) for t in "12")
    lane, taken = Lane.of(first), Counter[str]()

    async def take_and_give_back(store: Store, gateway_id: str) -> None:
        while taken.total() < 400:
            found = await store.write(effects.claim_delivery, lane, lambda _: [], gateway_id)
            if found.delivery is not None:
                taken[found.delivery.text] += 1
                await store.write(deliveries.settle, found.delivery, "pending")

    async with open_store(url) as here, open_store(url) as there, asyncio.timeout(LIMIT_S):
        for delivery in (first, second):
            await here.write(deliveries.create, delivery)
        await asyncio.gather(take_and_give_back(here, "one"), take_and_give_back(there, "two"))
    assert taken == {"1": taken.total()}


async def test_of_two_waits_that_would_close_a_circle_together_one_is_refused(url: str) -> None:
    def wait(tx: Tx, requester: Session, target: Session, caller: Turn) -> None:
        refuse_deadlock(tx, requester.key, target.key)
        until = now_ms() + 60_000
        exchanges.begin(
            tx,
            Exchange(
                requester_key=requester.key,
                target_key=target.key,
                caller_turn_id=caller.turn_id,
                wait_until_ms=until,
                max_turns=0,
                hop=1,
                request="?",
            ),
        )

    async with open_store(url) as store, asyncio.timeout(LIMIT_S):
        for number in range(20):
            pair = [await create(store, f"agent:{name}:hook:{number}") for name in "ab"]
            callers = [await store.write(turns.accept, Turn.of(each, "x")) for each in pair]
            results = await asyncio.gather(
                store.write(wait, pair[0], pair[1], callers[0]),
                store.write(wait, pair[1], pair[0], callers[1]),
                return_exceptions=True,
            )
            assert sorted(isinstance(r, NotAllowed) for r in results) == [False, True], results


async def test_of_two_senders_who_are_approved_at_once_one_becomes_the_owner(url: str) -> None:
    async with open_store(url) as store:
        for number in range(10):
            channel = f"chat{number}"
            for name in ("ann", "bob"):
                code, valid_until = f"{name}{number}".upper(), now_ms() + 60_000
                await store.write(
                    pairings.request, Pairing(channel, "default", name, name, code, valid_until)
                )
            approved = await asyncio.gather(
                *(
                    store.write(pairings.approve, f"{name}{number}", owner=True, channel=channel)
                    for name in ("ann", "bob")
                )
            )
            assert sorted(each.is_owner for each in approved) == [False, True]


async def test_a_turn_that_is_stopped_while_its_end_is_committed_is_answered_once(
    tmp_path: Path, url: str
) -> None:
    async with rehearse(tmp_path, three_agents() | {"store": {"url": url}}) as gateway:
        ending, end_turn = threading.Event(), gateway.effects.end_turn

        def end_slowly(tx: Tx, *args: Any, **kwargs: Any) -> Turn:
            ended = end_turn(tx, *args, **kwargs)
            ending.set()
            time.sleep(0.3)  # a commit that takes its time
            return ended

        gateway.effects.end_turn = end_slowly  # type: ignore[method-assign]
        options = TurnOptions(deliver=("webchat", "someone", None, None))
        key = "agent:ann:hook:x"
        await gateway.sessions.send(OWNER, key, InboundMessage("say: the answer", options=options))
        await asyncio.to_thread(ending.wait, LIMIT_S)
        await gateway.sessions.abort(OWNER, key)
        await wait_until_idle(gateway, key)
        posted = await gateway.store.read(deliveries.of_session, key)
        assert [delivery.text for delivery in posted] == ["the answer"]


async def test_the_same_idempotency_key_at_once_is_one_turn(tmp_path: Path, url: str) -> None:
    async with rehearse(tmp_path, three_agents() | {"store": {"url": url}}) as gateway:
        message = InboundMessage("say: once", idempotency_key="k")
        sent = await asyncio.gather(*(gateway.sessions.send(OWNER, ANN, message) for _ in range(8)))
        assert len({turn.turn_id for turn in sent}) == 1
        assert len(await gateway.store.read(turns.open_of, ANN)) <= 1


async def test_a_label_is_given_once(url: str) -> None:
    async with open_store(url) as store:
        made = await asyncio.gather(
            *(create(store, f"agent:a:hook:{number}", label="same") for number in range(8)),
            return_exceptions=True,
        )
        assert [type(each) for each in made].count(Session) == 1
        assert [type(each) for each in made].count(LabelTaken) == 7


async def test_no_more_children_are_made_than_allowed_however_many_are_asked_for_at_once(
    tmp_path: Path, url: str
) -> None:
    settings = spawning_agents(subagents={"maxChildrenPerAgent": 3}) | {"store": {"url": url}}
    settings["models"]["rehearsal"]["scripts"]["*"] = [{"text": "slow", "delayMs": 60_000}]
    async with rehearse(tmp_path, settings) as gateway:
        await say(gateway, "say: begin", ANN)
        request = SpawnRequest(task="wait", agent_id="bob")
        made = await asyncio.gather(
            *(gateway.sessions.spawn_for(OWNER, ANN, request) for _ in range(8)), return_exceptions=True
        )
        assert [type(each) for each in made].count(SpawnReceipt) == 3
        assert [type(each) for each in made].count(NotAllowed) == 5


def holding(verb: Callable[..., None]) -> tuple[Callable[..., None], threading.Event, threading.Event]:
    """The verb as one that does not commit before the second event; the first tells that it has run."""
    ran, go_on = threading.Event(), threading.Event()

    def held(tx: Tx, *args: Any) -> None:
        verb(tx, *args)
        ran.set()
        assert go_on.wait(LIMIT_S)

    return held, ran, go_on


async def until_blocked(url: str) -> None:
    """Wait until a transaction waits for another one."""
    query = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    async with asyncio.timeout(LIMIT_S):
        while not await asyncio.to_thread(postgres.execute, url, query):
            await asyncio.sleep(0.01)


async def test_a_session_that_is_deleted_meanwhile_is_left_alone_by_retention(
    tmp_path: Path, url: str
) -> None:
    async with rehearse(tmp_path, three_agents() | {"store": {"url": url}}) as gateway:
        store = gateway.store
        session = await create(store, "agent:ann:hook:old")
        delete, ran, go_on = holding(gateway.effects.delete_session)
        deleting = asyncio.create_task(store.write(delete, session.key))
        await asyncio.to_thread(ran.wait, LIMIT_S)
        removing = asyncio.create_task(store.write(gateway.retention._apply, session, "delete"))
        await until_blocked(url)
        go_on.set()
        await deleting
        assert await removing is False


async def test_a_message_that_is_accepted_while_retention_looks_keeps_its_session(
    tmp_path: Path, url: str
) -> None:
    async with rehearse(tmp_path, three_agents() | {"store": {"url": url}}) as gateway:
        store = gateway.store
        session = await create(store, "agent:ann:hook:old")

        def accept(tx: Tx) -> None:
            turns.accept(tx, Turn.of(session, "say: still here"))

        accept_slowly, ran, go_on = holding(accept)
        accepting = asyncio.create_task(store.write(accept_slowly))
        await asyncio.to_thread(ran.wait, LIMIT_S)
        removing = asyncio.create_task(store.write(gateway.retention._apply, session, "delete"))
        await until_blocked(url)
        go_on.set()
        await accepting
        assert await removing is False
        assert await store.read(sessions.find, session.key) is not None


async def test_what_a_turn_of_a_child_commits_is_not_undone_by_its_parent_that_yields(url: str) -> None:
    async with open_store(url) as store:
        parent, child = await create(store, "agent:a:main"), await create(store, "agent:a:subagent:1")
        spawn = Exchange(
            kind="spawn",
            requester_key=parent.key,
            target_key=child.key,
            on_complete="wake",
            max_turns=0,
            hop=1,
            request="?",
        )
        await store.write(exchanges.begin, spawn)

        def end_turn(tx: Tx) -> None:
            tx.lock("session", child.key)
            exchanges.save(tx, replace(spawn, phase="announce"))

        announce, ran, go_on = holding(end_turn)
        announcing = asyncio.create_task(store.write(announce))
        await asyncio.to_thread(ran.wait, LIMIT_S)
        yielding = asyncio.create_task(store.write(children.wake_on_completion, parent, "t"))
        await until_blocked(url)
        go_on.set()
        await announcing
        assert await yielding == 1
        saved = await store.read(exchanges.get, spawn.exchange_id)
        assert (saved.phase, saved.on_complete) == ("announce", "post")


async def test_in_a_database_restored_from_another_server_new_entries_are_found(url: str) -> None:
    """Its transactions have lower numbers than those that its rows tell of."""
    async with open_store(url) as store:
        session = await create(store, "agent:a:main")
        await store.write(entries.append, session.session_id, said("written there"))
        await until_found(store, "written")
    later = 10**12
    postgres.execute(url, f"update entries set written_in = written_in + {later} returning 1")
    postgres.execute(url, f"update followers set position = position + {later} returning 1")
    async with open_store(url) as store:
        await store.write(entries.append, session.session_id, said("appended here"))
        await until_found(store, "appended")
        await until_found(store, "written")


async def until_found(store: Store, word: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await search(store, word):
            await asyncio.sleep(0.01)


async def test_watchers_see_the_entries_of_a_session_in_their_order(url: str) -> None:
    seen: dict[str, list[int]] = {}

    def note(changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, EntryAppended):
                seen.setdefault(change.entry.session_id, []).append(change.entry.seq)

    async with open_store(url) as store:
        made = [await create(store, f"agent:a:hook:{number}") for number in range(4)]
        store.watch(note)
        await asyncio.gather(
            *(store.write(entries.append, each.session_id, said("x")) for _ in range(50) for each in made)
        )
    assert seen == {each.session_id: list(range(1, 51)) for each in made}


async def test_an_entry_that_is_committed_late_is_found_by_search(url: str) -> None:
    async with open_store(url) as store:
        early, late = await create(store, "agent:a:main"), await create(store, "agent:b:main")
        with contextlib.closing(postgres_server.connect(url)) as slow:
            slow.execute("begin")
            slow.execute(
                "insert into entries (transcript, seq, role, body, created_at_ms)"
                """ select number, 1, 'user', '{"role":"user","content":"needle late"}', 0"""
                " from transcripts where session_id = %s",
                (late.session_id,),
            )
            await store.write(entries.append, early.session_id, said("needle early"))
            assert len(await search(store, "needle")) in (0, 1)
            slow.execute("commit")
        found = {hit.session_key for hit in await search(store, "needle")}
    assert found == {early.key, late.key}


async def test_a_text_with_a_nul_character_is_kept_without_it(tmp_path: Path, url: str) -> None:
    async with open_store(url) as store:
        session = await create(store, "agent:a:main", label="a\0b")
        assert (await store.read(sessions.get, session.key)).label == "a\ufffdb"
        entry = await store.write(entries.append, session.session_id, said("x\0y"))
        (kept,) = await store.read(entries.history, session.session_id)
        assert kept.message == entry.message == said("x\0y")


# -- a server that fails


@pytest.mark.promise("store.survives_a_database_crash")
async def test_after_a_crash_of_the_database_everything_acknowledged_is_there(
    durable: postgres.Server,
) -> None:
    acknowledged: list[int] = []
    stop = asyncio.Event()

    async def append(store: Store, session: Session) -> None:
        while not stop.is_set():
            with contextlib.suppress(StoreError):
                acknowledged.append((await store.write(entries.append, session.session_id, said("x"))).seq)

    async with open_store(durable.url("d")) as store, asyncio.timeout(2 * LIMIT_S):
        session = await create(store, "agent:a:main")
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(append(store, session))
            while len(acknowledged) < 50:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(durable.halt, signal.SIGQUIT)
            before = len(acknowledged)
            await asyncio.to_thread(durable.start)
            while len(acknowledged) < before + 20:  # the store connects again by itself
                await asyncio.sleep(0.01)
            stop.set()
        kept = [e.seq for e in await store.read(entries.history, session.session_id, limit=10**6)]
    assert kept == list(range(1, len(kept) + 1))
    assert set(acknowledged) <= set(kept)
    assert len(acknowledged) == len(set(acknowledged))


async def test_a_turn_waits_while_the_database_is_down_and_ends_when_it_is_back(
    tmp_path: Path, durable: postgres.Server
) -> None:
    settings = three_agents() | {"store": {"url": durable.url("d")}}
    async with rehearse(tmp_path, settings) as gateway, asyncio.timeout(2 * LIMIT_S):
        assert (await say(gateway, "say: before", ANN)).reply == "before"
        await asyncio.to_thread(durable.halt)
        sending = asyncio.create_task(use(gateway, "sessions_send", BOB, agentId="ann", message="say: hi"))
        await asyncio.sleep(0)
        await asyncio.to_thread(durable.start)
        assert (await sending)["reply"] == "hi"


# -- what is shown


@pytest.mark.promise("store.password_not_shown")
async def test_the_password_of_the_database_is_in_no_message(tmp_path: Path) -> None:
    secret = "s3cret-of-the-db"
    (tmp_path / "hobnob.json5").write_text(
        f'{{store: {{url: "postgresql://me:{secret}@127.0.0.1:9/db?sslpassword={secret}"}}}}'
    )
    env = os.environ | {"HOBNOB_HOME": str(tmp_path)}
    for command in (["config", "show"], ["doctor"], ["agent", "-m", "hi"], ["serve"], ["backup", "x"]):
        run = subprocess.run(
            [sys.executable, "-m", "hobnob", *command], env=env, capture_output=True, text=True, cwd=tmp_path
        )
        assert secret not in run.stdout + run.stderr, command
        if command[0] in ("doctor", "agent", "serve"):
            assert "postgresql://127.0.0.1:9/db cannot be reached" in " ".join(
                (run.stdout + run.stderr).split()
            ), (command, run.stdout, run.stderr)


@pytest.mark.parametrize(
    "url", ["postgresql://me:s3cret@host:port/db x", "postgresql://me:s3cret@h/db?nonsense=s3cret"]
)
async def test_a_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(HobnobError) as refusal:
        async with open_store(url):
            pass
    chain: BaseException | None = refusal.value
    while chain is not None:
        assert "s3cret" not in str(chain)
        chain = chain.__cause__


def test_without_psycopg_the_line_that_installs_it_is_shown(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import asyncio; from hobnob.store import open_store\n"
        "async def main():\n    async with open_store('postgresql:///x'): pass\n"
        "try:\n    asyncio.run(main())\nexcept Exception as error:\n    print(error.message, error.fix)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "psycopg is not installed" in run.stdout, run.stderr
    assert "pip install 'hobnob[postgres]'" in run.stdout


async def test_two_gateways_with_one_state_directory_are_refused(url: str, tmp_path: Path) -> None:
    settings = three_agents() | {"store": {"url": url}}
    async with rehearse(tmp_path, settings):
        with pytest.raises(StoreInUse, match="gateway is in use by process"):
            async with rehearse(tmp_path, settings):
                pass
