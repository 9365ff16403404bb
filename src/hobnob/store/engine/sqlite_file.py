"""The SQLite file: open, lock, migrate, back up and check it; translate its errors."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from hobnob import statedir
from hobnob.errors import (
    HobnobError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreInUse,
    StoreUnwritable,
)
from hobnob.store.engine import statements
from hobnob.types import now_ms

PAGE_BYTES = 8192
APPLICATION_ID = 0x484F424E  # "HOBN", in the header of the file
# Each connection has its own page cache, and a gateway has four. The system caches the file as well.
WRITER_CACHE_KB, READER_CACHE_KB = 4096, 3072
_LOCK_ATTEMPTS = 5


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection with our settings. A read-only one never blocks the process that has the store open."""
    mode = "ro" if read_only else "rw"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
        timeout=10,
    )
    try:
        connection.execute(f"pragma cache_size = -{READER_CACHE_KB if read_only else WRITER_CACHE_KB}")
        if read_only:
            connection.execute("pragma query_only = on")
    except sqlite3.Error:  # the file is damaged
        connection.close()
        raise
    return connection


def backup(path: Path, target: Path) -> int:
    """Copy a snapshot of the store into a new file, also while it is in use. Returns its size in bytes."""
    if target.exists():
        raise StoreUnwritable(f"{target} exists already.", fix="Name a file that does not exist yet.")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        os.close(statedir.open_private(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        with translate_errors(path), contextlib.closing(connect(path, read_only=True)) as connection:
            connection.execute("pragma query_only = off")  # vacuum writes the copy only
            connection.execute("vacuum into ?", (str(partial),))
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


def integrity(path: Path) -> list[str]:
    """The problems inside the file; empty when it is intact. Raises when it cannot be read at all."""
    try:
        with translate_errors(path), contextlib.closing(connect(path, read_only=True)) as connection:
            _check_application_id(connection, path)
            statements.missing("sqlite", _applied(connection), str(path))
            found = [row[0] for row in connection.execute("pragma integrity_check(20)")]
    except StoreCorrupt as damage:
        return [damage.message]
    return [f for f in found if f != "ok"]


def applied(path: Path) -> set[int]:
    """The numbers of the migrations that a store has."""
    with translate_errors(path), contextlib.closing(connect(path, read_only=True)) as connection:
        statements.missing("sqlite", found := _applied(connection), str(path))
        return set(found)


def holder(path: Path) -> int | None:
    """The pid of the process that has the store open; 0 when unknown, None when there is none."""
    lock = lock_path(path)
    if not lock.exists():
        return None
    with lock.open("rb") as file:
        try:
            # Shared, so that concurrent checks do not block each other. `lock_file` retries meanwhile.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _pid(file.fileno()) or 0
        return None


def open_file(path: Path) -> sqlite3.Connection:
    if not path.exists():
        os.close(statedir.open_private(path, os.O_CREAT | os.O_RDWR))
    with translate_errors(path):
        connection = connect(path)
        try:
            # Only a new file is written to: an existing one must open on a full disk too.
            if not _check_application_id(connection, path):
                connection.execute(f"pragma page_size = {PAGE_BYTES}")
                connection.execute(f"pragma application_id = {APPLICATION_ID}")
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
            connection.execute("pragma wal_autocheckpoint = 4000")
            connection.execute("pragma journal_size_limit = 67108864")
            migrate(connection, str(path))
        except BaseException:
            connection.close()
            raise
    return connection


def migrate(connection: sqlite3.Connection, store: str) -> None:
    """Bring the schema up to date. Raises StoreTooNew, StoreError."""
    sql = statements.load()
    connection.execute(sql["migrations_table"])
    for number, name, text, sha in statements.missing("sqlite", _applied(connection), store):
        with transaction(connection):
            for statement in _statements(text):
                connection.execute(statement)
            row = {"number": number, "name": name, "sha256": sha, "now_ms": now_ms()}
            connection.execute(sql["migration_insert"], row)


def _check_application_id(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file has our application id; False for a new file. Raises StoreError for a foreign one."""
    (found,) = connection.execute("pragma application_id").fetchone()
    (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
    if tables and found != APPLICATION_ID:
        fix = "Set store.url to another file."
        raise StoreError(f"{path} is a database, but not a Hobnob store.", fix=fix)
    return bool(found == APPLICATION_ID)


def _applied(connection: sqlite3.Connection) -> dict[int, tuple[str, str]]:
    """Name and sha256 of the applied migrations by number."""
    rows = connection.execute(statements.load()["migrations_applied"])
    return {number: (name, sha) for number, name, sha in rows}


def _statements(text: str) -> Iterator[str]:
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    assert not statement.strip(), "the last statement of a migration has no semicolon"


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, *, writing: bool = True) -> Iterator[None]:
    connection.execute("begin immediate" if writing else "begin")
    try:
        yield
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold the lock of a store and write our pid into it. Raises StoreInUse."""
    fd = statedir.open_private(lock_path(path), os.O_CREAT | os.O_RDWR)
    try:
        for attempt in range(_LOCK_ATTEMPTS):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt + 1 == _LOCK_ATTEMPTS:
                    raise StoreInUse(str(path), _pid(fd)) from None
                time.sleep(0.02)  # it may only be a check in `holder`
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def _pid(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdigit() else None


@contextlib.contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as store errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: Path) -> HobnobError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"The disk of {path} is full.", fix="Free some space; no restart is needed.")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorrupt(
            f"{path} is damaged: {error}.",
            fix="Stop Hobnob, move the file away together with its -wal and -shm files, and put a backup"
            " made with `hobnob backup` in its place. Without one, `sqlite3 FILE .recover` saves"
            " what is readable.",
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreUnwritable(
            f"{path} cannot be opened for writing: {error}.",
            fix="Give the user that runs Hobnob read and write access to the file and its folder.",
        )
    return StoreError(f"{path}: {error}.")
