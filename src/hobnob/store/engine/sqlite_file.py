"""The SQLite file itself: opening, locking, migrating, copying and checking it, and names for its errors."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
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
    StoreTooNew,
    StoreUnwritable,
)
from hobnob.store.engine import statements
from hobnob.types import now_ms

PAGE_BYTES = 8192
APPLICATION_ID = 0x484F424E  # "HOBN", in the header of the file
_LOCK_TRIES = 5


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection with our settings. A read-only one never disturbs the process that has the store open."""
    mode = "ro" if read_only else "rw"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
        timeout=10,
    )
    connection.execute("pragma cache_size = -16384")
    if read_only:
        connection.execute("pragma query_only = on")
    return connection


def backup(path: Path, target: Path) -> int:
    """Copy the store as it is now into a new file, also while it is in use. Returns the size in bytes."""
    if target.exists():
        raise StoreUnwritable(f"{target} exists.", fix="Name a file that does not exist yet.")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        os.close(statedir.open_private(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        with named(path), contextlib.closing(connect(path, read_only=True)) as connection:
            connection.execute("pragma query_only = off")  # the copy is what gets written, not the source
            connection.execute("vacuum into ?", (str(partial),))
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


def integrity(path: Path) -> list[str]:
    """What is wrong inside the file; nothing when it is sound. Raises when it cannot be read at all."""
    try:
        with named(path), contextlib.closing(connect(path, read_only=True)) as connection:
            _check_ours(connection, path)
            _check_age(connection, path)
            found = [row[0] for row in connection.execute("pragma integrity_check(20)")]
    except StoreCorrupt as damage:
        return [damage.message]
    return [f for f in found if f != "ok"]


def holder(path: Path) -> int | None:
    """The process that has the store open, None when nobody has."""
    lock = lock_path(path)
    if not lock.exists():
        return None
    with lock.open("rb") as file:
        try:
            # Shared, so that askers do not shut each other out. Whoever opens the store tries again.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _pid(file.fileno()) or 0
        return None


def open_file(path: Path) -> sqlite3.Connection:
    if not path.exists():
        os.close(statedir.open_private(path, os.O_CREAT | os.O_RDWR))
    with named(path):
        connection = connect(path)
        try:
            if not _check_ours(connection, path):  # new; an old one opens also when the disk is full
                connection.execute(f"pragma page_size = {PAGE_BYTES}")
                connection.execute(f"pragma application_id = {APPLICATION_ID}")
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
            connection.execute("pragma wal_autocheckpoint = 4000")
            connection.execute("pragma journal_size_limit = 67108864")
            _migrate(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    sql = statements.load()
    connection.execute(sql["migrations_table"])
    applied = _check_age(connection, path)
    known = statements.migrations("sqlite")
    for number, name, text in known:
        sha = hashlib.sha256(text.encode()).hexdigest()
        if number in applied:
            if applied[number] != (name, sha):
                raise StoreError(
                    f"{path} was made by a Hobnob whose migration {number} is another than this one's.",
                    fix="Use the version that made it, or move the file away to begin anew.",
                )
            continue
        with transaction(connection):
            for statement in _statements(text):
                connection.execute(statement)
            row = {"number": number, "name": name, "sha256": sha, "now_ms": now_ms()}
            connection.execute(sql["migration_insert"], row)


def _check_ours(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether it bears our mark. Nobody else's database is taken over by mistake."""
    (found,) = connection.execute("pragma application_id").fetchone()
    (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
    if tables and found != APPLICATION_ID:
        fix = "Name another file in store.url."
        raise StoreError(f"{path} is a database, but not one of Hobnob's.", fix=fix)
    return bool(found == APPLICATION_ID)


def _check_age(connection: sqlite3.Connection, path: Path) -> dict[int, tuple[str, str]]:
    """The migrations the file has had. Raises StoreTooNew when one is unknown here."""
    rows = connection.execute(statements.load()["migrations_applied"])
    applied = {number: (name, sha) for number, name, sha in rows}
    newest = statements.migrations("sqlite")[-1][0]
    if applied and max(applied) > newest:
        raise StoreTooNew(
            f"{path} was written by a newer Hobnob: its schema is {max(applied)}, the newest known here is"
            f" {newest}.",
            fix="Use the newer version, or restore a backup made before the upgrade.",
        )
    return applied


def _statements(text: str) -> Iterator[str]:
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    assert not statement.strip(), "the last statement of a migration lacks its semicolon"


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("begin immediate")
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
    """Hold the lock of a store, with our pid in it, or say who does."""
    fd = statedir.open_private(lock_path(path), os.O_CREAT | os.O_RDWR)
    try:
        for attempt in range(_LOCK_TRIES):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt + 1 == _LOCK_TRIES:
                    raise StoreInUse(str(path), _pid(fd)) from None
                time.sleep(0.02)  # it may only be somebody asking who holds it
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def _pid(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdigit() else None


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Give SQLite's errors our names."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: Path) -> HobnobError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(
            f"There is no room left on the disk of {path}.", fix="Free some space; nothing else is needed."
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorrupt(
            f"{path} is damaged: {error}.",
            fix="Stop Hobnob, move the file away together with its -wal and -shm files, and put a backup"
            " made with `hobnob backup` in its place. Without one, `sqlite3 FILE .recover` saves"
            " what can be read.",
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreUnwritable(
            f"{path} cannot be opened for writing: {error}.",
            fix="Give the user that runs Hobnob the right to read and write the file and its folder.",
        )
    return StoreError(f"{path}: {error}.")
