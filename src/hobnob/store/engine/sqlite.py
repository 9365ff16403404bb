"""The embedded store: SQLite with one writer thread and group commit.

Everything that waits to be written goes into one transaction and one fsync. One verb that fails takes none of
its neighbours with it: when it had written something, the group is run again with a savepoint around each.
Readers run beside the writer on their own connections and see what was last committed. A few rows are read by
the event loop itself: see `glances`.

A store belongs to the event loop it was opened in. What one round of the loop wants written is handed to the
writer together: two threads that pass Python's lock to and fro job by job are slower than SQLite is.

Nothing in this process may open the database file except through SQLite: closing a plain file handle on it
would drop SQLite's locks, and a reader in another process could then delete the log under us.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from hobnob import statedir
from hobnob.errors import StoreClosed
from hobnob.events import Change
from hobnob.store import entries
from hobnob.store.engine import statements
from hobnob.store.engine.loop_reader import LoopReader, ReadTooLarge
from hobnob.store.engine.sqlite_file import connect, lock_file, named, open_file, transaction, translate
from hobnob.store.engine.tx import P, T, Verb

_log = logging.getLogger(__name__)

MEMOS = 10_000  # things remembered between transactions
IDLE_S = 0.2  # after this long without work the writer catches up with the full-text index
_READERS = 2


@dataclass(slots=True)
class _Job:
    verb: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None
    changes: list[Change] = field(default_factory=list)


class _Spoiled(Exception):
    """A verb failed after it had written: what its group has done has to be undone."""


class SqliteTx:
    """A transaction on one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self._queries = statements.load()
        self.changes: list[Change] = []
        self.memo: dict[str, Any] = {}

    def get(self, kind: type[T], query: str, /, **params: Any) -> T | None:
        row = self._execute(self._queries[query], params).fetchone()
        return None if row is None else cast(T, statements.DECODERS[kind](row))

    def all(self, kind: type[T], query: str, /, **params: Any) -> list[T]:
        return list(self.each(kind, query, **params))

    def each(self, kind: type[T], query: str, /, **params: Any) -> Iterator[T]:
        return map(statements.DECODERS[kind], self._execute(self._queries[query], params))

    def rows(self, query: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._execute(self._queries[query], params).fetchall()

    def each_row(self, query: str, /, **params: Any) -> Iterator[tuple[Any, ...]]:
        return self._execute(self._queries[query], params)

    def value(self, query: str, /, **params: Any) -> Any:
        row = self._execute(self._queries[query], params).fetchone()
        return None if row is None else row[0]

    def run(self, query: str, /, *values: Any, **params: Any) -> int:
        return self._execute(self._queries[query], values or params).rowcount

    def put(self, query: str, thing: Any) -> int:
        sql, kind = self._queries[query], type(thing)
        values = statements.VALUES[kind](thing)
        by_name = dict(zip(statements.COLUMNS[kind], values, strict=True)) if "?" not in sql else values
        return self._execute(sql, by_name).rowcount

    def words(self, text: str) -> str:
        printable = "".join(char if char.isprintable() else " " for char in text)
        return " ".join('"' + word.replace('"', '""') + '"' for word in printable.split())


class SqliteStore:
    """See `Store`. Opened by `open_sqlite`."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.path = path
        self._loop = loop
        self._waiting: list[_Job] = []  # since the last round of the loop
        self._groups: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._watchers: list[Callable[[list[Change]], None]] = []
        self._closed = False
        self._local = threading.local()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store-reader")
        self._reader_connections: list[sqlite3.Connection] = []
        self._writer = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)
        self._connection = open_file(path)
        self._tx = SqliteTx(self._connection)
        self._glances = LoopReader(path, loop)

    async def read(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise StoreClosed
        return await self._loop.run_in_executor(
            self._readers, self._read, lambda tx: verb(tx, *args, **kwargs)
        )

    async def read_small(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise StoreClosed
        try:
            with named(self.path):
                return self._glances.look(lambda connection: verb(SqliteTx(connection), *args, **kwargs))
        except ReadTooLarge:
            return await self.read(verb, *args, **kwargs)

    async def write(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise StoreClosed
        job = _Job(verb, args, kwargs, self._loop.create_future())
        if not self._waiting:
            self._loop.call_soon(self._hand_over)
        self._waiting.append(job)
        return cast(T, await job.future)

    def _hand_over(self) -> None:
        if self._waiting:
            self._groups.put(self._waiting)
            self._waiting = []

    def watch(self, watcher: Callable[[list[Change]], None]) -> None:
        self._watchers.append(watcher)

    def start(self) -> None:
        self._writer.start()

    async def close(self) -> None:
        """Write what is waiting, then let go of the file."""
        self._closed = True
        self._hand_over()
        self._groups.put(None)
        await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        self._writer.join()
        self._readers.shutdown()
        self._glances.close()
        for connection in self._reader_connections:
            connection.close()
        self._connection.close()

    def _read(self, verb: Callable[[SqliteTx], T]) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        with named(self.path):
            if connection is None:
                connection = self._local.connection = connect(self.path, read_only=True)
                self._reader_connections.append(connection)
            connection.execute("begin")
            try:
                return verb(SqliteTx(connection))
            finally:
                connection.execute("rollback")

    def _write_loop(self) -> None:
        while (jobs := self._next()) is not None:
            self._commit(jobs)
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
                self._loop.call_soon_threadsafe(self._answer, jobs)

    def _next(self) -> list[_Job] | None:
        """All that waits, as one group. While nothing does, index what has not been indexed."""
        behind = True
        while True:
            try:
                jobs = self._groups.get(timeout=IDLE_S if behind else None)
                break
            except queue.Empty:
                behind = self._index()
        while jobs is not None and not self._groups.empty():
            more = self._groups.get()
            if more is None:
                self._groups.put(None)  # the end, to be met again once this group is committed
                break
            jobs = jobs + more
        return jobs

    def _index(self) -> bool:
        """Small commits, so that work that arrives meanwhile waits a few milliseconds at most."""
        try:
            while self._groups.empty():
                with named(self.path), transaction(self._connection):
                    if not entries.index(self._tx):
                        return False
        except Exception:  # a full disk, say: the writer goes on, and search finds less than it could
            _log.exception("the full-text index cannot be brought up to date")
            return False
        return True

    def _commit(self, jobs: list[_Job]) -> None:
        """Run jobs in one transaction."""
        try:
            try:
                self._run(jobs, apart=False)
            except _Spoiled:
                self._tx.memo.clear()
                self._run(jobs, apart=True)
        except Exception as error:  # whatever it is, whoever waits has to hear of it
            self._tx.memo.clear()
            for job in jobs:
                job.error, job.changes = job.error or error, []

    def _run(self, jobs: list[_Job], *, apart: bool) -> None:
        """Run each job; with `apart` in a savepoint of its own, so that it can fail alone."""
        connection, tx = self._connection, self._tx
        if len(tx.memo) > MEMOS:
            tx.memo.clear()
        with named(self.path), transaction(connection):
            for job in jobs:
                job.error, job.changes, tx.changes = None, [], []
                written = connection.total_changes
                if apart:
                    connection.execute("savepoint verb")
                try:
                    job.result = job.verb(tx, *job.args, **job.kwargs)
                    job.changes = tx.changes
                except BaseException as error:  # told to whoever asked, as our error or as it is
                    if not connection.in_transaction:
                        raise  # SQLite gave up the whole group, as it does when the disk is full
                    if apart:
                        connection.execute("rollback to verb")
                        tx.memo.clear()
                    elif connection.total_changes != written:
                        raise _Spoiled from error
                    job.error = self._told(error)
                if apart:
                    connection.execute("release verb")

    def _told(self, error: BaseException) -> Exception:
        """An error in a form that can be given to whoever waits."""
        if isinstance(error, sqlite3.Error):
            return translate(error, self.path)
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            return error
        return RuntimeError(f"a verb raised {error!r}")  # a future takes neither of these

    def _answer(self, jobs: list[_Job]) -> None:
        changes = [change for job in jobs for change in job.changes]
        for watcher in self._watchers if changes else ():
            try:
                watcher(changes)
            except Exception:  # a watcher's fault must not keep the writers waiting
                _log.exception("a watcher of the store failed")
        for job in jobs:
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(job.error)


@contextlib.asynccontextmanager
async def open_sqlite(path: Path) -> AsyncIterator[SqliteStore]:
    """Open the store at `path`, made and brought up to date when needed. One process at a time may."""
    statedir.private_dir(path.parent)
    with lock_file(path):
        store = await asyncio.to_thread(SqliteStore, path, asyncio.get_running_loop())
        store.start()
        try:
            yield store
        finally:
            await store.close()
