"""The embedded store: SQLite with one writer thread and group commit.

All queued writes share one transaction and one fsync. A verb that fails does not affect the others: if it had
written something, the group is rolled back and run again with a savepoint per verb. Readers run in parallel
on their own connections and see the last commit. A few rows are read on the event loop: see `loop_reader`.

A store belongs to the event loop it was opened in. The writes of one iteration of the loop go to the writer
thread together: handing the GIL over once per job costs more than the SQLite work.

Nothing in this process may open the database file except through SQLite. Closing a plain file handle on it
would drop SQLite's locks, and a reader in another process could then delete the write-ahead log while it is
in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import queue
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
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
from hobnob.store.engine.sqlite_file import (
    connect,
    lock_file,
    open_file,
    transaction,
    translate,
    translate_errors,
)
from hobnob.store.engine.tx import P, T, Verb

_log = logging.getLogger(__name__)

MAX_MEMOS = 2_000  # cached values across transactions
IDLE_S = 0.2  # after this long without work, the writer updates the full-text index
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


class _GroupFailed(Exception):
    """A verb failed after it had written, so the whole group is rolled back."""


class SqliteTx:
    """A transaction on one connection."""

    concurrent = False

    def __init__(self, connection: sqlite3.Connection, memo: dict[str, Any] | None = None) -> None:
        self._execute = connection.execute
        self._queries = statements.load()
        self.changes: list[Change] = []
        self.memo: dict[str, Any] = {} if memo is None else memo

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

    def merged(
        self, query: str, values: Sequence[str], order: Callable[[tuple[Any, ...]], Any], /, **params: Any
    ) -> Iterator[tuple[Any, ...]]:
        return heapq.merge(*(self.each_row(query, each=each, **params) for each in values), key=order)

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

    def index_words(self, text: str) -> str:
        return text

    def lock(self, kind: str, key: str) -> bool:
        return True  # one writer


class SqliteStore:
    """See `Store`. Opened by `open_sqlite`."""

    shared = False

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.path = path
        self._loop = loop
        self._waiting: list[_Job] = []  # submitted in this iteration of the loop
        self._groups: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._watchers: list[Callable[[list[Change]], None]] = []
        self._closed = False
        self._local = threading.local()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="store-reader")
        self._reader_connections: list[sqlite3.Connection] = []
        self._readers_memo: dict[str, Any] = {}
        self._writer = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)
        self._connection = open_file(path)
        self._tx = SqliteTx(self._connection)
        self._loop_reader = LoopReader(path, loop)

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
            with translate_errors(self.path):
                memo = self._readers_memo
                return self._loop_reader.read(lambda own: verb(SqliteTx(own, memo), *args, **kwargs))
        except ReadTooLarge:
            return await self.read(verb, *args, **kwargs)

    async def write(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.check_writable()
        job = _Job(verb, args, kwargs, self._loop.create_future())
        if not self._waiting:
            self._loop.call_soon(self._submit_writes)
        self._waiting.append(job)
        return cast(T, await job.future)

    def _submit_writes(self) -> None:
        if self._waiting:
            self._groups.put(self._waiting)
            self._waiting = []

    def check_writable(self) -> None:
        if self._closed:
            raise StoreClosed

    def watch(self, watcher: Callable[[list[Change]], None], *, own_only: bool = False) -> None:
        self._watchers.append(watcher)

    def start(self) -> None:
        self._writer.start()

    async def close(self) -> None:
        """Commit the queued writes, then close the file."""
        self._closed = True
        self._submit_writes()
        self._groups.put(None)
        await asyncio.to_thread(self._close_connections)

    def _close_connections(self) -> None:
        self._writer.join()
        self._readers.shutdown()
        self._loop_reader.close()
        for connection in self._reader_connections:
            connection.close()
        self._connection.close()

    def _read(self, verb: Callable[[SqliteTx], T]) -> T:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        with translate_errors(self.path):
            if connection is None:
                connection = self._local.connection = connect(self.path, read_only=True)
                self._reader_connections.append(connection)
            connection.execute("begin")
            try:
                return verb(SqliteTx(connection, self._readers_memo))
            finally:
                connection.execute("rollback")

    def _write_loop(self) -> None:
        while (jobs := self._next_group()) is not None:
            self._commit(jobs)
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so are the callers
                self._loop.call_soon_threadsafe(self._set_results, jobs)

    def _next_group(self) -> list[_Job] | None:
        """Wait for jobs and return all that are queued, None at the end. Indexes entries while idle."""
        index_is_behind = True
        while True:
            try:
                jobs = self._groups.get(timeout=IDLE_S if index_is_behind else None)
                break
            except queue.Empty:
                index_is_behind = self._index()
        while jobs is not None and not self._groups.empty():
            more = self._groups.get()
            if more is None:
                self._groups.put(None)  # the end marker: read again after this group is committed
                break
            jobs = jobs + more
        return jobs

    def _index(self) -> bool:
        """Index entries until writes are queued. False when the index is up to date, or after a failure.

        Commits are small, so that a new write waits a few milliseconds at most.
        """
        try:
            while self._groups.empty():
                with translate_errors(self.path), transaction(self._connection):
                    if not entries.index(self._tx):
                        return False
        except Exception:  # for example a full disk: the writer must go on
            _log.exception("full-text index not updated: search may miss new entries")
            return False
        return True

    def _commit(self, jobs: list[_Job]) -> None:
        """Run jobs in one transaction, and again with savepoints when one failed after writing."""
        try:
            try:
                self._run(jobs, savepoints=False)
            except _GroupFailed:
                self._tx.memo.clear()
                self._run(jobs, savepoints=True)
        except Exception as error:  # every caller gets an answer, whatever failed
            self._tx.memo.clear()
            for job in jobs:
                job.error, job.changes = job.error or error, []

    def _run(self, jobs: list[_Job], *, savepoints: bool) -> None:
        """Run jobs in one transaction. With a savepoint each, a job that fails is rolled back alone."""
        connection, tx = self._connection, self._tx
        if len(tx.memo) > MAX_MEMOS:
            tx.memo.clear()
        with translate_errors(self.path), transaction(connection):
            for job in jobs:
                job.error, job.changes, tx.changes = None, [], []
                changes_before = connection.total_changes
                if savepoints:
                    connection.execute("savepoint verb")
                try:
                    job.result = job.verb(tx, *job.args, **job.kwargs)
                    job.changes = tx.changes
                except BaseException as error:  # the caller gets it
                    if not connection.in_transaction:
                        raise  # SQLite rolled back the whole group, as on a full disk
                    if savepoints:
                        connection.execute("rollback to verb")
                        tx.memo.clear()
                    elif connection.total_changes != changes_before:
                        raise _GroupFailed from error
                    job.error = self._caller_error(error)
                if savepoints:
                    connection.execute("release verb")

    def _caller_error(self, error: BaseException) -> Exception:
        """The error to set on the caller's future."""
        if isinstance(error, sqlite3.Error):
            return translate(error, self.path)
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            return error
        return RuntimeError(f"a store verb raised {error!r}")  # a future must not raise these

    def _set_results(self, jobs: list[_Job]) -> None:
        changes = [change for job in jobs for change in job.changes]
        for watcher in self._watchers if changes else ():
            try:
                watcher(changes)
            except Exception:  # a failing watcher must not keep callers waiting
                _log.exception("store watcher failed: it may have missed changes")
        for job in jobs:
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(job.error)


@contextlib.asynccontextmanager
async def open_sqlite(path: Path) -> AsyncIterator[SqliteStore]:
    """Open the store at `path`; create and migrate it when needed. Raises StoreInUse."""
    statedir.refuse_exposed(statedir.private_dir(path.parent))
    with lock_file(path):
        store = await asyncio.to_thread(SqliteStore, path, asyncio.get_running_loop())
        store.start()
        try:
            yield store
        finally:
            await store.close()
