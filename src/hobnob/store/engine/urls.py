"""Which database a URL names, and questions that any of them can answer."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hobnob.errors import BadInput
from hobnob.fixes import config_set
from hobnob.store.engine import sqlite_file
from hobnob.store.engine.reader import SqliteReader
from hobnob.store.engine.sqlite import open_sqlite
from hobnob.store.engine.tx import Reader, Store

_POSTGRES = ("postgresql://", "postgres://")


def is_postgres(url: str) -> bool:
    return url.startswith(_POSTGRES)


@asynccontextmanager
async def open_engine(url: str) -> AsyncIterator[Store]:
    """Open the database at a URL; create and migrate it when needed. Raises StoreInUse."""
    if is_postgres(url):
        _require_psycopg()
        from hobnob.store.engine.postgres import open_postgres

        async with open_postgres(url) as store:
            yield store
    else:
        async with open_sqlite(sqlite_path(url)) as embedded:
            yield embedded


def open_read_only(url: str) -> Reader:
    """A store that exists, without its lock."""
    if is_postgres(url):
        _require_psycopg()
        from hobnob.store.engine.postgres import PostgresReader

        return PostgresReader(url)
    return SqliteReader(sqlite_path(url))


def exists(url: str) -> bool:
    """Whether there is a store at a URL. Raises StoreError when that cannot be found out."""
    if is_postgres(url):
        from hobnob.store.engine import postgres_server

        return bool(postgres_server.applied(url))
    return sqlite_path(url).exists()


def shown(url: str) -> str:
    """A URL for people: the path of a file, or a database without user and password."""
    if is_postgres(url):
        from hobnob.store.engine import postgres_server

        return postgres_server.shown(url)
    return str(sqlite_path(url))


def holders(url: str) -> list[int]:
    """The pids of the processes that have the store open; 0 for those on other machines."""
    if is_postgres(url):
        from hobnob.store.engine import postgres_server

        return [found.pid or 0 for found in postgres_server.holders(url)]
    pid = sqlite_file.holder(sqlite_path(url))
    return [] if pid is None else [pid]


def holder(url: str) -> int | None:
    """The pid of a process that has the store open; 0 when unknown, None when there is none."""
    return max(holders(url), default=None)


def _require_psycopg() -> None:
    """Raises BadInput with the line that installs psycopg."""
    importlib.import_module("hobnob.store.engine.postgres_server")


def sqlite_path(url: str) -> Path:
    """The file of an embedded store. Raises BadInput."""
    if is_postgres(url):
        raise BadInput(
            "This works on an SQLite file, and store.url names a PostgreSQL database.",
            fix="Use the tools of PostgreSQL (pg_dump, pg_restore), or `hobnob store copy` into a file.",
        )
    if not url.startswith("sqlite:///"):
        raise BadInput(
            f"store.url begins with {url.partition(':')[0]!r}; sqlite and postgresql are supported.",
            fix=config_set("store.url", "sqlite:////var/lib/hobnob/hobnob.db"),
        )
    try:
        return Path(url.removeprefix("sqlite:///")).expanduser().resolve()  # aliases share one lock
    except (RuntimeError, OSError) as error:
        raise BadInput(f"The path in store.url cannot be resolved: {error}.") from error
