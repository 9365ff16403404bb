"""Copy a whole store from one database to another, in one transaction, and check the copy.

Copied are all rows but those that each database makes for itself: the full-text index, and how far its
followers have come. Entries and deliveries get new positions, in the same order. The copy is checked by the
number and the hash of the rows of each table, read again from both databases.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from hobnob import statedir
from hobnob.errors import BadInput, Conflict, NotFound, StoreCorrupt, StoreError
from hobnob.store.engine import sqlite_file, urls

_BATCH = 2_000
_OWN = ("followers", "migrations")  # tables that a copy does not take over
_BEFORE = 2**60  # beyond every position
_POSITIONS = {"entries": "position", "transcripts": "number", "inbox": "seq"}  # counters of PostgreSQL


@dataclass(frozen=True, slots=True)
class Table:
    """A table with the columns that are copied, and those that rows are sorted by to compare them."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Digest:
    """The number of rows of a table, and a hash of all of them."""

    rows: int
    sha256: str


class _End(Protocol):
    """A database that is copied from or to, within one transaction."""

    in_commit_order: str  # what entries are sorted by

    def rows(self, table: str, columns: Sequence[str], order: Sequence[str]) -> Iterator[tuple[Any, ...]]: ...

    def insert(self, table: str, columns: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None: ...

    def finish(self) -> None:
        """Set what follows from the copied rows."""
        ...


def copy_store(
    source_url: str,
    target_url: str,
    *,
    exclusive: bool = False,
    on_table: Callable[[str, int], None] | None = None,
) -> dict[str, Digest]:
    """Copy a store into an empty one. Returns what is in each table. Raises Conflict, StoreInUse, StoreError.

    `exclusive`: nobody may use the source meanwhile. Otherwise the copy is what it held at one moment.
    """
    if not urls.exists(source_url):
        raise NotFound(f"There is no store at {urls.shown(source_url)}.")
    if source_url == target_url:
        raise BadInput("A store cannot be copied to itself.", fix="Name another target.")
    tables, found = _tables(), dict[str, Digest]()
    with _open(source_url, lock=exclusive) as source, _open(target_url, lock=True, writing=True) as target:
        for table in tables:
            if next(target.rows(table.name, table.key, ()), None) is not None:
                raise Conflict(
                    f"{urls.shown(target_url)} is not empty: its table {table.name} has rows.",
                    fix="Name a new file or an empty database.",
                )
        clean = urls.is_postgres(target_url)
        for table in tables:
            _copy(table, source, target, clean=clean)
            kept, copied = _digest(table, source, clean=clean), _digest(table, target)
            if kept != copied:
                raise StoreError(
                    f"The copy of the table {table.name} differs: {kept.rows} rows became {copied.rows}.",
                    fix="Nothing was copied. Please report this.",
                )
            found[table.name] = copied
            if on_table is not None:
                on_table(table.name, copied.rows)
        target.finish()
    return found


def _tables() -> list[Table]:
    """All tables of a store, as SQLite has them."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        sqlite_file.migrate(connection, ":memory:")
        names = connection.execute(
            "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'"
            " and name not like 'entry_words%' order by name"
        ).fetchall()
        found = []
        for (name,) in names:
            if name in _OWN:
                continue
            about = connection.execute(f"pragma table_info({name})").fetchall()
            columns = tuple(column[1] for column in about)
            key = tuple(column[1] for column in sorted(about, key=lambda c: c[5]) if column[5])
            found.append(Table(name, columns, key))
        return found


def _copy(table: Table, source: _End, target: _End, *, clean: bool) -> None:
    columns, order = table.columns, table.key
    if table.name == "entries":
        columns, order = tuple(c for c in columns if c != "position"), (source.in_commit_order,)
    elif table.name == "deliveries":
        order = ("rowid",)  # in which they are sent; the copy counts anew
    rows = source.rows(table.name, columns, order)
    if clean:
        rows = map(_without_nul, rows)
    if table.name == "purges":
        rows = ((transcript, 0) for transcript, _ in rows)  # the new index has nothing of them
    if table.name == "entries":
        columns = ("position", *columns)
        rows = ((number, *row) for number, row in enumerate(rows, 1))
    target.insert(table.name, columns, rows)


def _digest(table: Table, end: _End, *, clean: bool = False) -> Digest:
    columns, order = table.columns, table.key
    if table.name == "entries":
        columns, order = tuple(c for c in columns if c != "position"), ("transcript", "seq")
    elif table.name == "purges":
        columns = ("transcript",)
    count, total = 0, hashlib.sha256()
    for row in end.rows(table.name, columns, order):
        try:
            total.update(orjson.dumps(_without_nul(row) if clean else row, option=orjson.OPT_APPEND_NEWLINE))
        except orjson.JSONEncodeError as error:
            raise StoreCorrupt(f"The table {table.name} has a value of a wrong type: {error}.") from error
        count += 1
    return Digest(count, total.hexdigest())


def _without_nul(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row as PostgreSQL can keep it: it has no U+0000 in texts."""
    return tuple(v.replace("\0", "\ufffd") if isinstance(v, str) and "\0" in v else v for v in row)


@contextlib.contextmanager
def _open(url: str, *, lock: bool, writing: bool = False) -> Iterator[_End]:
    if urls.is_postgres(url):
        with _open_postgres(url, lock=lock, writing=writing) as database:
            yield database
        return
    path = urls.sqlite_path(url)
    statedir.private_dir(path.parent)
    is_new = not path.exists()
    with sqlite_file.lock_file(path) if lock else contextlib.nullcontext():
        connection = sqlite_file.open_file(path) if lock else sqlite_file.connect(path, read_only=True)
        try:
            with sqlite_file.translate_errors(path), sqlite_file.transaction(connection, writing=writing):
                yield _SqliteEnd(connection)
        except BaseException:
            connection.close()
            if writing and is_new:
                for suffix in ("", "-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
            raise
        connection.close()


class _SqliteEnd:
    in_commit_order = "position"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, table: str, columns: Sequence[str], order: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        return self._connection.execute(_select(table, columns, order))

    def insert(self, table: str, columns: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
        marks = ", ".join("?" for _ in columns)
        self._connection.executemany(f"insert into {table} ({', '.join(columns)}) values ({marks})", rows)  # noqa: S608

    def finish(self) -> None:
        pass  # counters follow the rows, and followers begin at the first entry


def _select(table: str, columns: Sequence[str], order: Sequence[str]) -> str:
    sorting = f" order by {', '.join(order)}" if order else ""
    return f"select {', '.join(columns)} from {table}{sorting}"  # noqa: S608 - names of our own schema


@contextlib.contextmanager
def _open_postgres(url: str, *, lock: bool, writing: bool) -> Iterator[_End]:
    from hobnob.store.engine import postgres_server as server

    with (
        contextlib.closing(server.connect(url, name=server.gateway_name())) as connection,
        server.translate_errors(url),
    ):
        if lock:
            server.use(url, connection, exclusively=True)
            server.migrate(url, connection)
        elif not server.applied(url):
            raise NotFound(f"There is no store at {server.shown(url)}.")
        mode = "read write" if writing else "isolation level repeatable read, read only"
        with server.transaction(connection, mode):
            yield _PostgresEnd(connection)


class _PostgresEnd:
    in_commit_order = "written_in, position"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._cursors = 0

    def rows(self, table: str, columns: Sequence[str], order: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        self._cursors += 1
        with self._connection.cursor(f"copy_{self._cursors}") as cursor:
            cursor.itersize = _BATCH
            cursor.execute(_select(table, columns, order))
            yield from cursor

    def insert(self, table: str, columns: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
        if table == "entries":
            # Followers read them before all that this database will write itself, in the same order.
            columns, rows = (*columns, "written_in"), ((*row, row[0] - _BEFORE) for row in rows)
        with self._connection.cursor() as cursor:
            with cursor.copy(f"copy {table} ({', '.join(columns)}) from stdin") as copy:
                for row in rows:
                    copy.write_row(row)

    def finish(self) -> None:
        execute = self._connection.execute
        for table, column in _POSITIONS.items():
            execute(
                f"select setval(pg_get_serial_sequence('{table}', '{column}'), max({column})) from {table}"  # noqa: S608
                " having count(*) > 0"
            )
        for name in ("words", "mirror"):
            execute("insert into followers (name, position) values (%s, %s)", (name, -_BEFORE))
