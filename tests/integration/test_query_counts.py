"""How many queries a page takes: a few, however much is on it."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.integration.helpers import ANN, BOB, create_sessions, spawning_agents, three_agents, use

from hobnob import config
from hobnob.gateway import Gateway, open_gateway
from hobnob.keys import parse
from hobnob.records import replace
from hobnob.requests import SessionQuery
from hobnob.store import Tx, entries, exchanges, sessions
from hobnob.store.engine import sqlite_file
from hobnob.testing import OWNER, rehearse
from hobnob.types import Exchange, Session, Turn

pytestmark = pytest.mark.sqlite_file
Transactions = list[list[str]]


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> Transactions:
    """The queries of every reading transaction from now on: the mirror of transcripts reads too."""
    seen: Transactions = []

    def traced(path: Path, **options: Any) -> sqlite3.Connection:
        connection = sqlite_file.connect(path, **options)
        current: list[str] = []

        def note(statement: str) -> None:
            nonlocal current
            if statement == "begin":
                current = []
                seen.append(current)
            elif statement != "rollback":
                current.append(statement)

        connection.set_trace_callback(note)
        return connection

    for module in ("sqlite", "loop_reader"):
        monkeypatch.setattr(f"hobnob.store.engine.{module}.connect", traced)
    return seen


@asynccontextmanager
async def idle_gateway(home: Path) -> AsyncIterator[Gateway]:
    """A gateway that does nothing by itself, so that every query is one of the test."""
    (home / "hobnob.json5").write_bytes(orjson.dumps(three_agents()))
    loaded = config.load(home / "hobnob.json5", env={"HOBNOB_HOME": str(home)})
    async with open_gateway(loaded, env={}, working=False) as gateway:
        yield gateway


@contextmanager
def queries_of(transactions: Transactions, table: str) -> Iterator[list[str]]:
    """The queries of the one transaction made within that begins with this table."""
    transactions.clear()
    queries: list[str] = []
    yield queries
    (found,) = [each for each in transactions if each and f"from {table}" in each[0]]
    queries += found


def families(tx: Tx, count: int) -> None:
    """Sessions with a message, each with two children."""
    for number in range(count):
        parent = sessions.create(tx, Session.of(parse(f"agent:ann:hook:p{number}")))
        entries.append(tx, parent.session_id, {"role": "user", "content": f"hello {number}"})
        for child in range(2):
            key = parse(f"agent:ann:subagent:p{number}-{child}")
            sessions.create(tx, Session.of(key, spawned_by=parent))


@pytest.mark.parametrize(
    ("query", "most"),
    [
        (SessionQuery(limit=100), 4),
        (SessionQuery(limit=100, include_standing=True), 7),
        (SessionQuery(limit=30, include_standing=True, message_limit=5), 8),
    ],
    ids=["plain", "standing", "messages"],
)
async def test_a_list_takes_a_few_queries_however_long_it_is(
    tmp_path: Path, transactions: Transactions, query: SessionQuery, most: int
) -> None:
    async with idle_gateway(tmp_path) as gateway:
        await gateway.store.write(families, 66)
        with queries_of(transactions, "sessions") as queries:
            page = await gateway.sessions.queries.list(OWNER, query)
        assert page["count"] >= 30
        assert any("childSessions" in row for row in page["sessions"])
        assert any("spawnedBy" in row for row in page["sessions"])
        assert 0 < len(queries) <= most, queries


async def test_a_second_list_reads_only_the_sessions_that_changed(
    tmp_path: Path, transactions: Transactions
) -> None:
    async with idle_gateway(tmp_path) as gateway:
        await gateway.store.write(families, 10)
        await gateway.sessions.queries.list(OWNER)
        with queries_of(transactions, "sessions") as unchanged:
            before = await gateway.sessions.queries.list(OWNER)
        await gateway.store.write(sessions.patch, before["sessions"][-1]["key"], label="changed")
        with queries_of(transactions, "sessions") as changed:
            after = await gateway.sessions.queries.list(OWNER)
        assert len(changed) == len(unchanged) + 1
        assert after["sessions"][0]["label"] == "changed"
        assert after["sessions"][1:] == before["sessions"][:-1]


async def test_a_timeline_takes_a_few_queries_however_long_it_is(
    tmp_path: Path, transactions: Transactions
) -> None:
    def fill(tx: Tx) -> None:
        target = sessions.get(tx, BOB)
        for number in range(50):
            exchange = Exchange(requester_key=ANN, target_key=BOB, request=f"question {number}", state="done")
            turn = Turn.of(target, "question", step="primary", exchange_id=exchange.exchange_id)
            tx.put("turn_insert", replace(turn, position=number + 1, status="ended", outcome="ok"))
            exchanges.begin(tx, exchange)

    async with idle_gateway(tmp_path) as gateway:
        await create_sessions(gateway, ANN, BOB)
        await gateway.store.write(fill)
        with queries_of(transactions, "exchanges") as queries:
            page = await gateway.sessions.queries.timeline(OWNER, limit=50, cursor=None)
        assert (page["count"], len(page["exchanges"][0]["steps"])) == (50, 1)
        assert 0 < len(queries) <= 4, queries


async def test_the_sub_agents_of_a_tree_are_listed_with_three_queries(
    tmp_path: Path, transactions: Transactions
) -> None:
    async with rehearse(tmp_path, spawning_agents({"*": ["done"]})) as gateway:
        await use(gateway, "sessions_spawn", task="work", agentId="bob")
        session = await gateway.store.read(sessions.get, ANN)
        with queries_of(transactions, "sessions") as queries:
            spawned = await gateway.sessions.children(session)
        assert len(spawned) == 1
        assert len(queries) == 3, queries
