"""The store on PostgreSQL: a thread for each connection, transactions in parallel.

Writes run at READ COMMITTED and lock what they change (`Tx.lock`). One that meets another (a serialization
failure, a deadlock, a unique key that somebody else just used) runs again. Reads see one snapshot.

Watchers get changes in the order of the commits, as far as it matters: a transaction takes its place in the
order just before it commits. One that waited for a lock of another takes a later place than that other.

Writes begin in the order they were asked for, each when the one before has its first lock or has run. So two
messages to one session are accepted in the order they came; only what follows overlaps.

A commit whose connection was lost may have been saved. Each writer notes the number of its transaction in
that transaction (table `commits`), so it can look: it returns the result, or runs the transaction again.

Several gateways may use a database. Each holds a shared lock on a connection of its own, which keeps out
whoever copies the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import psycopg

from hobnob.errors import HobnobError, StoreClosed, StoreError, StoreInUse, unwrap_exception_group
from hobnob.events import Change
from hobnob.store import entries
from hobnob.store.engine import postgres_server as server
from hobnob.store.engine.postgres_sql import PostgresTx, Query
from hobnob.store.engine.postgres_statements import Statements
from hobnob.store.engine.tx import P, T, Verb
from hobnob.types import new_id

_log = logging.getLogger(__name__)

# Connections of a gateway, with one more for its lock. Threads that take turns on few cores cost more than
# transactions in parallel gain: on two cores, 4 writers made an eighth more turns than 8.
WRITERS, READERS = min(8, max(4, 2 * (os.cpu_count() or 4))), 4
MAX_ATTEMPTS = 30  # of a transaction that meets others
# How long a transaction waits for a database that restarts. Longer than it takes until a gateway gives up its
# turns for others to continue: none of them fails because of the database.
RECONNECT_S = 10.0
_RETRIED_S = 0.5  # also what had to wait for longer is tried again for so long
_RECONNECT_PAUSE_S = 0.1
IDLE_S = 0.2  # after this long without writes, the full-text index is updated
_INDEX_STEP = 64
_CHECK_LOCK_S = 2.0
_PAUSES = random.Random()  # noqa: S311 - only spreads attempts
_CONFLICTS = ("40001", "40P01", "55P03", "23505")  # serialization, deadlock, lock timeout, unique violation
# Waits for a commit that is still under way, also if that adds the row.
_COMMITTED = Query(
    b"insert into commits (writer, number, at) values ($1, -1, now())"
    b" on conflict (writer) do update set at = excluded.at returning number",
    ("writer",),
)
_OLD_COMMITS = "delete from commits where at < now() - interval '1 day'"


@dataclass(slots=True)
class _Job:
    verb: Callable[[PostgresTx], Any]
    future: asyncio.Future[Any] | None  # None for the full-text index, whose result nobody waits for
    asked_at: float = field(default_factory=time.monotonic)
    result: Any = None
    error: Exception | None = None
    changes: list[Change] | None = None


@dataclass(slots=True)
class _Commit:
    """A place in the order of commits. `job` is None once the commit has failed."""

    job: _Job | None
    done: bool = False


class _Once:
    """Calls a function the first time it is called itself, whichever thread does it."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._functions = [function]

    def __call__(self) -> None:
        with contextlib.suppress(IndexError):
            self._functions.pop()()


class _OutcomeUnknown(Exception):
    """The connection was lost during a commit, and the store was closed before the outcome could be read."""


class PostgresStore:
    """See `Store`. Opened by `open_postgres`."""

    shared = True

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.instance = new_id()  # names the connections of this process
        self._loop = loop
        self._closed = False
        self._in_use: StoreInUse | None = None  # somebody else has the database for themselves
        self._watchers: list[Callable[[list[Change]], None]] = []
        self._own_watchers: list[Callable[[list[Change]], None]] = []
        self._readers_memo: dict[str, Any] = {}
        self._local = threading.local()
        self._connections: set[server.Connection] = set()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._gate = threading.Lock()  # whose holder takes the next job
        self._writers = [threading.Thread(target=self._write_loop, daemon=True) for _ in range(WRITERS)]
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._order_lock = threading.Lock()
        self._commits: deque[_Commit] = deque()  # in order; the first ones that are done are published
        self._pending = 0  # writes whose callers wait
        self._index_timer: asyncio.TimerHandle | None = None
        self._lock_connection = server.connect(url, name=server.gateway_name())
        try:
            with server.translate_errors(url):
                server.use(url, self._lock_connection)
            server.migrate(url, self._lock_connection)
            self._lock_connection.execute(_OLD_COMMITS)
            server.warn_of_strangers(self._lock_connection)
        except BaseException:
            self._lock_connection.close()
            raise

    async def read(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise StoreClosed
        return await self._loop.run_in_executor(
            self._readers, self._read, lambda tx: verb(tx, *args, **kwargs), time.monotonic()
        )

    async def read_small(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.read(verb, *args, **kwargs)

    async def write(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.check_writable()
        future = self._loop.create_future()
        self._pending += 1
        self._jobs.put(_Job(lambda tx: verb(tx, *args, **kwargs), future))
        return cast(T, await future)

    def check_writable(self) -> None:
        if self._closed:
            raise StoreClosed
        if self._in_use is not None:
            raise self._in_use

    def watch(self, watcher: Callable[[list[Change]], None], *, own_only: bool = False) -> None:
        (self._own_watchers if own_only else self._watchers).append(watcher)

    def publish(self, changes: list[Change]) -> None:
        """Pass changes that another gateway has committed to the watchers."""
        _notify(self._watchers, changes)

    async def close(self) -> None:
        """Commit the queued writes, then close the connections."""
        self._closed = True
        if self._index_timer is not None:
            self._index_timer.cancel()
        await asyncio.to_thread(self._close_connections)

    def _close_connections(self) -> None:
        self._jobs.put(None)
        for writer in self._writers:
            writer.join()
        self._readers.shutdown()
        for connection in (*self._connections, self._lock_connection):
            connection.close()

    def _statements(self, *, read_only: bool) -> Statements:
        """Those of the connection of this thread, which is opened anew when it was lost."""
        lost: Statements | None = getattr(self._local, "statements", None)
        if lost is not None and not lost.connection.closed:
            return lost
        connection = server.connect(self.url, read_only=read_only, name=f"hobnob {self.instance}")
        if lost is not None:
            self._connections.discard(lost.connection)
            server.end_backend(connection, lost.backend)  # it may still hold locks
        self._connections.add(connection)
        writer = None if read_only else self._writer
        statements = self._local.statements = Statements(connection, writer)
        return statements

    @property
    def _writer(self) -> str:
        """The name of this thread in the table `commits`."""
        return f"{self.instance} {threading.current_thread().name}"

    def cut_connections(self) -> None:
        """End what waits for an answer of the database: the connections may be dead without a sign of it."""
        for connection in [*self._connections]:
            server.cut(connection)

    def _read(self, verb: Callable[[PostgresTx], T], asked_at: float) -> T:
        return self._until_reached(lambda: self._read_once(verb), asked_at)

    def _read_once(self, verb: Callable[[PostgresTx], T]) -> T:
        statements = self._statements(read_only=True)
        statements.command(b"begin")
        try:
            return verb(PostgresTx(statements, self._readers_memo))
        finally:
            _roll_back(statements)

    def _until_reached(self, function: Callable[[], T], asked_at: float) -> T:
        """Call a function that uses the connection of this thread, again while the database restarts.

        The time that it waited for this thread counts: else the last of many would wait ten times as long.
        """
        deadline, pause = 0.0, 0.02
        while True:
            try:
                return function()
            except psycopg.Error as error:
                if not server.is_lost(error):
                    raise server.translate(error, self.url) from error
                self._drop_connection()
                deadline = deadline or max(asked_at + RECONNECT_S, time.monotonic() + _RETRIED_S)
                if time.monotonic() > deadline or self._closed:
                    raise server.translate(error, self.url) from error
            except StoreError as error:  # the connection could not be opened
                lost = isinstance(error.__cause__, psycopg.Error) and server.is_lost(error.__cause__)
                deadline = deadline or max(asked_at + RECONNECT_S, time.monotonic() + _RETRIED_S)
                if not lost or time.monotonic() > deadline or self._closed:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def _drop_connection(self) -> None:
        statements: Statements | None = getattr(self._local, "statements", None)
        if statements is not None:
            statements.connection.close()

    def start(self) -> None:
        for number, writer in enumerate(self._writers, 1):
            writer.name = f"store-writer-{number}"
            writer.start()
        self._schedule_index()

    def _write_loop(self) -> None:
        """Take jobs in turn with the other writers, one each."""
        while True:
            open_gate = _Once(self._gate.release)
            self._gate.acquire()
            try:
                job = self._jobs.get()
                if job is None:
                    self._jobs.put(None)  # for the other writers
                    return
                self._write(job, open_gate)
            finally:
                open_gate()

    def _write(self, job: _Job, open_gate: Callable[[], None]) -> None:
        """Run a job on this thread's connection, and hand its result to the event loop."""
        try:
            self._until_reached(lambda: self._transact(job, open_gate), job.asked_at)
            finish: Callable[[], None] = self._publish
        except BaseException as error:  # the caller gets it
            job.error = _caller_error(error, self.url)
            finish = partial(self._finish, job)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so are the callers
            self._loop.call_soon_threadsafe(finish)

    def _transact(self, job: _Job, open_gate: Callable[[], None]) -> None:
        """Run a job in a transaction, again when it meets another one."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            statements = self._statements(read_only=False)
            tx = PostgresTx(statements, {}, writing=True, on_lock=open_gate)
            try:
                statements.command(b"begin")
                job.result = job.verb(tx)
                job.changes = tx.changes
                open_gate()
                self._commit(statements, job, marked=tx.has_written)
                return
            except psycopg.Error as error:
                _roll_back(statements)
                if error.sqlstate not in _CONFLICTS or attempt == MAX_ATTEMPTS:
                    raise
                open_gate()
            except BaseException:
                _roll_back(statements)
                raise
            time.sleep(_PAUSES.uniform(0, min(0.001 * 2**attempt, 0.1)))

    def _commit(self, statements: Statements, job: _Job, *, marked: bool) -> None:
        place = _Commit(job)
        with self._order_lock:
            self._commits.append(place)
        number = self._local.number = getattr(self._local, "number", 0) + 1
        saved = False
        try:
            statements.commit(number if marked else None)
            saved = True
        except psycopg.Error as error:
            saved = marked and server.is_lost(error) and self._was_committed(number)
            if not saved:
                raise
        finally:
            if not saved:
                place.job = None
            place.done = True
            if not saved:  # those behind it wait no longer
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._publish)

    def _was_committed(self, number: int) -> bool:
        """Whether this thread's transaction was saved. Waits until the database can be reached."""
        while not self._closed:
            self._drop_connection()
            try:
                found = self._statements(read_only=False).execute(_COMMITTED, (self._writer,)).fetchone()
                return found is not None and found[0] == number
            except psycopg.Error as error:
                if not server.is_lost(error) and error.sqlstate not in _CONFLICTS:
                    raise
            except StoreError:  # the connection could not be opened
                pass
            time.sleep(_RECONNECT_PAUSE_S)
        raise _OutcomeUnknown

    def _publish(self) -> None:
        """Hand out the results of commits, in their order, up to the first that is not done."""
        while self._commits and self._commits[0].done:
            if (job := self._commits.popleft().job) is not None:
                self._finish(job)

    def _finish(self, job: _Job) -> None:
        if job.future is None:
            self._index_finished(job)
            return
        if job.error is None and job.changes:
            _notify((*self._watchers, *self._own_watchers), job.changes)
        self._pending -= 1
        if not job.future.done():
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(job.error)
        self._schedule_index()

    def _schedule_index(self) -> None:
        """Update the full-text index when nothing has been written for a while."""
        if self._index_timer is not None:
            self._index_timer.cancel()
        if not self._closed:
            self._index_timer = self._loop.call_later(IDLE_S, self._start_index)

    def _start_index(self) -> None:
        self._index_timer = None
        if not self._closed and self._pending == 0 and self._in_use is None:
            self._jobs.put(_Job(lambda tx: entries.index(tx, step=_INDEX_STEP), None))

    def _index_finished(self, job: _Job) -> None:
        if job.error is not None:
            _log.error("full-text index not updated, search may miss new entries: %s", job.error)
        elif job.result:
            self._start_index()

    async def hold_lock(self) -> None:
        """Notice when the connection with the shared lock is lost, and lock again on a new one.

        When the database is being copied by then, this gateway writes nothing any more.
        """
        reached = True
        while True:
            await asyncio.sleep(_CHECK_LOCK_S)
            try:
                await asyncio.to_thread(self._check_lock)
                reached = True
            except HobnobError as error:
                if isinstance(error, StoreInUse):
                    error.fix = "Restart this gateway when the copy is done, on the database to be used."
                    self._in_use = error
                    _log.error("the database is being copied; nothing is written any more: %s", error.fix)
                    return
                level = logging.WARNING if reached else logging.DEBUG  # a warning per outage
                _log.log(level, "connection to the database lost, trying again: %s", error)
                reached = False

    def _check_lock(self) -> None:
        with server.translate_errors(self.url):
            try:
                self._lock_connection.execute("select 1")
                return
            except psycopg.Error:
                self._lock_connection.close()
            self._lock_connection = server.connect(self.url, name=server.gateway_name())
            server.use(self.url, self._lock_connection)


def _notify(watchers: Iterable[Callable[[list[Change]], None]], changes: list[Change]) -> None:
    for watcher in watchers:
        try:
            watcher(changes)
        except Exception:  # a failing watcher must not keep callers waiting
            _log.exception("store watcher failed: it may have missed changes")


def _roll_back(statements: Statements) -> None:
    if not statements.connection.closed:
        with contextlib.suppress(psycopg.Error):  # a lost connection has rolled back
            statements.command(b"rollback")


def _caller_error(error: BaseException, url: str) -> Exception:
    """The error to set on the caller's future."""
    if isinstance(error, _OutcomeUnknown):
        return StoreError(
            f"The connection to {server.shown(url)} was lost during a commit, which may have been saved.",
            fix="Look whether it was saved, or repeat the request with the same idempotency key.",
        )
    if isinstance(error, psycopg.Error):
        return server.translate(error, url)
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"a store verb raised {error!r}")  # a future must not raise these


@contextlib.asynccontextmanager
async def open_postgres(url: str) -> AsyncIterator[PostgresStore]:
    """Open the store in a database; create and migrate its tables when needed. Raises StoreInUse."""
    store = await asyncio.to_thread(PostgresStore, url, asyncio.get_running_loop())
    with unwrap_exception_group():
        async with asyncio.TaskGroup() as group:
            store.start()
            holding = group.create_task(store.hold_lock(), name="store-lock")
            try:
                yield store
            finally:
                holding.cancel()
                await store.close()


class PostgresReader:
    """`read` as in `Store`, on one connection, also while a gateway uses the database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = asyncio.Lock()  # a connection has one transaction at a time
        self._statements = Statements(server.connect(url, read_only=True))

    async def read(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._lock:
            return await asyncio.to_thread(self._read, lambda tx: verb(tx, *args, **kwargs))

    def _read(self, verb: Callable[[PostgresTx], T]) -> T:
        with server.translate_errors(self._url):
            self._statements.command(b"begin")
            try:
                return verb(PostgresTx(self._statements, {}))
            finally:
                _roll_back(self._statements)

    def close(self) -> None:
        self._statements.connection.close()
