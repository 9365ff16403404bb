"""`hobnob store copy`: a whole store moves from SQLite to PostgreSQL and back."""

import sqlite3
from pathlib import Path

import pytest
from tests import postgres, stores
from tests.integration.helpers import ANN, spawning_agents, texts, use

from hobnob.errors import Conflict, NotFound, StoreCorrupt, StoreInUse
from hobnob.keys import parse
from hobnob.store import Store, deliveries, entries, open_store, search, sessions
from hobnob.store.deliveries import Lane
from hobnob.store.engine.copying import copy_store
from hobnob.testing import rehearse, say
from hobnob.types import Delivery, Session

pytestmark = pytest.mark.skipif(stores.ON_POSTGRES, reason="copies between both kinds of store")


async def fill(home: Path) -> str:
    """A store with turns, a sub-agent and its exchange, and text that databases treat differently."""
    async with rehearse(home, spawning_agents()) as gateway:
        await use(gateway, "sessions_spawn", ANN, agentId="bob", task="say: the child is done", label="x")
        await say(gateway, "say: grüße aus Ærø, 100 % ohne \\u0000 :name ?", ANN)
        zeta = await gateway.store.write(sessions.create, Session.of(parse("agent:bob:hook:Zeta")))
        await gateway.store.write(sessions.patch, zeta.key, home="one")
        await gateway.store.write(sessions.create, Session.of(parse("agent:bob:hook:alpha"), label="a\0b"))
    return f"sqlite:///{home}/hobnob.db"


async def every_text(store: Store) -> list[tuple[str, str]]:
    found = []
    for session in await store.read(sessions.page, limit=100):
        found += [(session.key, e.body) for e in await store.read(entries.history, session.session_id)]
    return found


@pytest.mark.promise("store.copied_whole")
async def test_a_store_moves_to_postgresql_and_back_without_a_difference(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    first, second = await fill(tmp_path / "home"), postgres.new_database()
    third = f"sqlite:///{tmp_path}/back/hobnob.db"

    there = copy_store(first, second, exclusive=True)
    back = copy_store(second, third, exclusive=True)

    assert there == back
    assert there["entries"].rows > 5
    assert there["exchanges"].rows == 1
    async with open_store(first) as before, open_store(second) as between, open_store(third) as after:
        assert await every_text(before) == await every_text(between) == await every_text(after)
        assert (await after.read(sessions.get, str(parse("agent:bob:hook:Zeta")))).home == "one"


async def test_a_copied_store_goes_on_where_it_was(tmp_path: Path) -> None:
    url, target = await fill(tmp_path), postgres.new_database()
    copy_store(url, target, exclusive=True)

    settings = spawning_agents() | {"store": {"url": target}}
    async with rehearse(tmp_path, settings) as gateway:
        before = await texts(gateway, ANN, "user")
        await say(gateway, "say: one more", ANN)
        assert await texts(gateway, ANN, "user") == [*before, "say: one more"]
        assert len(await search(gateway.store, "grusse ærø")) == 2


async def test_a_target_that_is_not_empty_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    url, target = await fill(tmp_path), postgres.new_database()
    async with open_store(target) as store:
        kept = await store.write(sessions.create, Session.of(parse("agent:a:main")))

    with pytest.raises(Conflict, match="not empty"):
        copy_store(url, target, exclusive=True)

    async with open_store(target) as store:
        assert await store.read(sessions.page) == [kept]


async def test_messages_that_wait_are_copied_in_the_order_in_which_they_are_sent(tmp_path: Path) -> None:
    first, second = f"sqlite:///{tmp_path}/hobnob.db", postgres.new_database()
    third = f"sqlite:///{tmp_path}/back/hobnob.db"
    late, early = (Delivery(session_key=ANN, channel="irc", recipient="a", text=text) for text in "ab")
    async with open_store(first) as store:
        for delivery in (early, late):  # by a clock that was set back in between
            await store.write(deliveries.create, delivery)

    copy_store(first, second, exclusive=True)
    copy_store(second, third, exclusive=True)

    for url in (first, second, third):
        async with open_store(url) as store:
            assert await store.read(deliveries.head, Lane("irc", None, "a")) == early


async def test_a_store_in_use_is_not_copied(tmp_path: Path) -> None:
    target = postgres.new_database()
    async with rehearse(tmp_path, spawning_agents()):
        with pytest.raises(StoreInUse):
            copy_store(f"sqlite:///{tmp_path}/hobnob.db", target, exclusive=True)


async def test_a_store_that_several_gateways_use_is_not_copied_and_all_of_them_are_named(
    tmp_path: Path,
) -> None:
    url = postgres.new_database()
    async with open_store(url), open_store(url):
        with pytest.raises(StoreInUse, match=r"is in use by process \d+, process \d+") as refusal:
            copy_store(url, f"sqlite:///{tmp_path}/new.db", exclusive=True)
    assert refusal.value.fix is not None and "hobnob nodes list" in refusal.value.fix


async def test_a_copy_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    url, target = await fill(tmp_path), f"sqlite:///{tmp_path}/new/hobnob.db"
    with sqlite3.connect(tmp_path / "hobnob.db") as connection:
        connection.execute("update turns set reply = x'ff'")  # bytes that are no text

    with pytest.raises(StoreCorrupt, match="table turns"):
        copy_store(url, target, exclusive=True)

    assert not list((tmp_path / "new").glob("hobnob.db*[!k]"))


async def test_a_source_that_does_not_exist_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        copy_store(f"sqlite:///{tmp_path}/none.db", f"sqlite:///{tmp_path}/new.db", exclusive=True)
    assert list(tmp_path.iterdir()) == []


def test_both_databases_have_the_same_tables_and_columns(tmp_path: Path) -> None:
    from hobnob.store.engine import copying, postgres_server

    query = "select column_name from information_schema.columns where table_name = %s"
    with postgres_server.connect(postgres.new_database()) as connection:
        for table in copying._tables():
            rows = connection.execute(query, (table.name,)).fetchall()
            made_here = {"rowid", *{"entries": ["written_in"], "turns": ["crashed_on"]}.get(table.name, ())}
            assert {row[0] for row in rows} - made_here == set(table.columns), table.name
