"""Commits whose answer is lost: the connection to PostgreSQL ends when the server has executed the commit."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests import postgres, stores
from tests.waiting import LIMIT_S

from hobnob.events import Change, EntryAppended
from hobnob.keys import parse
from hobnob.store import deliveries, entries, open_store, sessions, turns
from hobnob.testing import OWNER, calls, rehearse, script
from hobnob.types import Session

pytestmark = pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself")
MAIN = "agent:main:main"
TURN_COMMITS = 14  # more than a turn with one tool call and its delivery have


class Link:
    """A TCP connection to the database that loses the answer to a commit."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socket = postgres.require_server().folder / ".s.PGSQL.5432"
        self._commits_left = 0
        self._executed = True
        self._relays: list[asyncio.Task[None]] = []
        self.lost = 0
        self.url = ""

    def lose(self, number: int = 1, *, executed: bool = True) -> None:
        """Lose a commit, counted from now: its answer, or with `executed=False` the commit itself."""
        self._commits_left, self._executed, self.lost = number, executed, 0

    def _is_lost(self, data: bytes) -> bool:
        if b"commit\0" not in data or not self._commits_left:
            return False
        self._commits_left -= 1
        return self._commits_left == 0

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._relays.append(asyncio.create_task(self._relay(reader, writer)))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._socket)

        async def to_client() -> None:
            while data := await server_reader.read(65_536):
                writer.write(data)

        answers = asyncio.create_task(to_client())
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                lost = self._is_lost(data)
                if lost:
                    answers.cancel()
                    await asyncio.wait([answers])
                if not lost or self._executed:
                    server_writer.write(data)
                if lost:
                    self.lost += 1
                    if self._executed:
                        await server_reader.read(1)
                    break
        answers.cancel()
        for each in (writer, server_writer):
            each.close()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Link"]:
        async with await asyncio.start_server(self._connected, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            self.url = f"postgresql://hobnob:x@127.0.0.1:{port}{urlsplit(self._url).path}"
            yield self
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*self._relays)


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    async with Link(postgres.new_database()).opened() as link:
        yield link


@pytest.mark.promise("store.lost_commits_are_looked_up")
@pytest.mark.parametrize("executed", [True, False])
async def test_a_transaction_is_saved_once_whether_or_not_its_lost_commit_was_executed(
    link: Link, executed: bool
) -> None:
    async with asyncio.timeout(LIMIT_S), open_store(link.url) as store:
        session = await store.write(sessions.create, Session.of(parse(MAIN)))
        seen: list[Change] = []
        store.watch(seen.extend)
        for number in range(1, 4):
            link.lose(executed=executed)
            said = {"role": "user", "content": f"{number}"}
            entry = await store.write(entries.append, session.session_id, said)
            assert (entry.seq, link.lost) == (number, 1)
        found = await store.read(entries.history, session.session_id)
        assert [entry.message["content"] for entry in found] == ["1", "2", "3"]
        assert [change.entry.seq for change in seen if isinstance(change, EntryAppended)] == [1, 2, 3]


@pytest.mark.promise("store.lost_commits_are_looked_up")
@pytest.mark.parametrize("number", range(1, TURN_COMMITS))
async def test_a_turn_is_run_once_and_answered_once_whichever_of_its_commits_is_lost(
    link: Link, tmp_path: Path, number: int
) -> None:
    settings = script(calls("session_status"), "Done.") | {"store": {"url": link.url}}
    async with rehearse(tmp_path, settings) as gateway:
        link.lose(number)
        turn = await gateway.sessions.send(OWNER, MAIN, "go")
        async with asyncio.timeout(LIMIT_S):
            ended = await gateway.sessions.wait(turn.turn_id, LIMIT_S)
        assert (ended.outcome, ended.reply, ended.claim) == ("ok", "Done.", 1)
        session = await gateway.store.read(sessions.get, MAIN)
        found = await gateway.store.read(entries.history, session.session_id)
        assert [entry.role for entry in found] == ["user", "assistant", "toolResult", "assistant"]
        assert await gateway.store.read(turns.open_turns) == []
        assert all(d.state == "delivered" for d in await gateway.store.read(deliveries.of_session, MAIN))
