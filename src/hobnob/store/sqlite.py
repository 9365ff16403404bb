"""The embedded store: SQLite with one writer thread and group commit.

Everything that waits to be written goes into one transaction and one fsync. Each verb runs in a savepoint of
its own, so that one that fails takes none of its neighbours with it. Readers run beside the writer on
their own connections and see what was last committed.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hobnob import statedir
from hobnob.errors import StoreClosed
from hobnob.store import entries, queries
from hobnob.store.sqlite_file import connect, lock_file, named, open_file, transaction, translate
from hobnob.store.tx import Change, P, T, Verb

_log = logging.getLogger(__name__)

GROUP = 256  # most verbs in one commit
IDLE_S = 0.2  # after this long without work the writer catches up with the full-text index
_READERS = 2


@dataclass(slots=True)
class _Job:
    verb: Callable[[SqliteTx], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None
    changes: list[Change] | None = None


class SqliteTx:
    """A transaction on one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self._queries = queries.load()
        self.changes: list[Change] = []

    def get(self, kind: type[T], query: str, /, **params: Any) -> T | None:
        row = self._execute(self._queries[query], params).fetchone()
        return None if row is None else cast(T, queries.DECODERS[kind](row))

    def all(self, kind: type[T], query: str, /, **params: Any) -> list[T]:
        return list(self.each(kind, query, **params))

    def each(self, kind: type[T], query: str, /, **params: Any) -> Iterator[T]:
        return map(queries.DECODERS[kind], self._execute(self._queries[query], params))

    def rows(self, query: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._execute(self._queries[query], params).fetchall()

    def value(self, query: str, /, **params: Any) -> Any:
        row = self._execute(self._queries[query], params).fetchone()
        return None if row is None else row[0]

    def run(self, query: str, /, **params: Any) -> int:
        return self._execute(self._queries[query], params).rowcount

    def put(self, query: str, thing: Any) -> int:
        names, values = queries.FIELDS[type(thing)]
        return self._execute(self._queries[query], dict(zip(names, values(thing), strict=True))).rowcount

    def words(self, text: str) -> str:
        printable = "".join(char if char.isprintable() else " " for char in text)
        return " ".join('"' + word.replace('"', '""') + '"' for word in printable.split())


class SqliteStore:
    """See `Store`. Opened by `open_sqlite`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._watchers: list[Callable[[list[Change]], None]] = []
        self._closed = False
        self._closing = threading.Lock()
        self._local = threading.local()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store-reader")
        self._reader_connections: list[sqlite3.Connection] = []
        self._writer = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)
        self._connection = open_file(path)
        self._tx = SqliteTx(self._connection)

    async def read(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise StoreClosed
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._read, lambda tx: verb(tx, *args, **kwargs))

    async def write(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        job = _Job(lambda tx: verb(tx, *args, **kwargs), loop, loop.create_future())
        with self._closing:  # nothing may come in behind the end mark: nobody would answer it
            if self._closed:
                raise StoreClosed
            self._jobs.put(job)
        return cast(T, await job.future)

    def watch(self, watcher: Callable[[list[Change]], None]) -> None:
        self._watchers.append(watcher)

    def start(self) -> None:
        self._writer.start()

    def close(self) -> None:
        """Write what is waiting, then let go of the file."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
        self._writer.join()
        self._readers.shutdown()
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
        while (job := self._next()) is not None:
            self._commit(job)

    def _next(self) -> _Job | None:
        """The next job. While there is none, index what has not been indexed."""
        behind = True
        while True:
            try:
                return self._jobs.get(timeout=IDLE_S if behind else None)
            except queue.Empty:
                behind = self._index()

    def _index(self) -> bool:
        """Small commits, so that work that arrives meanwhile waits a few milliseconds at most."""
        try:
            while self._jobs.empty():
                with named(self.path), transaction(self._connection):
                    if not entries.index(self._tx):
                        return False
        except Exception:  # a full disk, say: the writer goes on, and search finds less than it could
            _log.exception("the full-text index cannot be brought up to date")
            return False
        return True

    def _commit(self, first: _Job) -> None:
        """Run a job and all that wait behind it, also those that arrive meanwhile, in one transaction."""
        jobs = [first]
        try:
            with named(self.path), transaction(self._connection):
                self._run(first)
                while len(jobs) < GROUP and (job := self._waiting()) is not None:
                    jobs.append(job)
                    self._run(job)
        except Exception as error:  # whatever it is, whoever waits has to hear of it
            for job in jobs:
                job.error, job.changes = job.error or error, None
        by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
        for job in jobs:
            by_loop.setdefault(job.loop, []).append(job)
        for loop, done in by_loop.items():
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
                loop.call_soon_threadsafe(self._answer, done)

    def _waiting(self) -> _Job | None:
        try:
            job = self._jobs.get_nowait()
        except queue.Empty:
            return None
        if job is None:
            self._jobs.put(None)  # the end, to be met again once this group is committed
        return job

    def _run(self, job: _Job) -> None:
        execute, tx = self._connection.execute, self._tx
        tx.changes = []
        execute("savepoint verb")
        try:
            job.result = job.verb(tx)
        except BaseException as error:  # told to whoever asked, as our error or as it is
            if not self._connection.in_transaction:
                raise  # SQLite gave up the whole group, as it does when the disk is full
            execute("rollback to verb")
            job.error = self._told(error)
        else:
            job.changes = tx.changes
        execute("release verb")

    def _told(self, error: BaseException) -> Exception:
        """An error in a form that can be given to whoever waits."""
        if isinstance(error, sqlite3.Error):
            return translate(error, self.path)
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            return error
        return RuntimeError(f"a verb raised {error!r}")  # a future takes neither of these

    def _answer(self, jobs: list[_Job]) -> None:
        changes = [change for job in jobs for change in job.changes or ()]
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
        store = await asyncio.to_thread(SqliteStore, path)
        store.start()
        try:
            yield store
        finally:
            await asyncio.to_thread(store.close)
