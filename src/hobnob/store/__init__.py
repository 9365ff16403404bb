"""The store: sessions, transcripts, turns, exchanges and deliveries on disk.

Store verbs are plain functions of a transaction, in a module per noun. `store.read(verb, …)` and
`store.write(verb, …)` run them. Verbs called in one function passed to `write` share a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from hobnob.errors import BadInput, NotFound, unwrap_exception_group
from hobnob.fixes import config_set
from hobnob.store import (
    approvals,
    deliveries,
    devices,
    entries,
    exchanges,
    idempotency,
    jobs,
    retention,
    sessions,
    turns,
)
from hobnob.store.engine.reader import SqliteReader
from hobnob.store.engine.sqlite import open_sqlite
from hobnob.store.engine.tx import Store, Tx
from hobnob.store.mirror import Mirror

__all__ = [
    "Store",
    "Tx",
    "approvals",
    "deliveries",
    "devices",
    "entries",
    "exchanges",
    "idempotency",
    "index_words",
    "jobs",
    "open_reader",
    "open_store",
    "purge_entries",
    "retention",
    "search",
    "sessions",
    "sqlite_path",
    "turns",
]


@asynccontextmanager
async def open_store(url: str, *, transcripts: Path | None = None) -> AsyncIterator[Store]:
    """Open the store at a URL. With `transcripts`, also mirror each transcript as a file below it."""
    async with open_sqlite(sqlite_path(url)) as store:
        if transcripts is None:
            yield store
            return
        mirror = Mirror(store, transcripts)
        with unwrap_exception_group():
            async with asyncio.TaskGroup() as group:
                group.create_task(mirror.run(), name="mirror")
                try:
                    yield store
                finally:
                    mirror.stop()


@asynccontextmanager
async def open_reader(url: str) -> AsyncIterator[SqliteReader]:
    """Open the store read-only, also while another process has it open. Raises NotFound without a file."""
    path = sqlite_path(url)
    if not path.exists():
        raise NotFound(f"There is no store at {path} yet.", fix="It is created when Hobnob is first used.")
    with closing(SqliteReader(path)) as reader:
        yield reader


def sqlite_path(url: str) -> Path:
    if not url.startswith("sqlite:///"):
        raise BadInput(
            f"store.url begins with {url.partition(':')[0]!r}; only sqlite is supported.",
            fix=config_set("store.url", "sqlite:////var/lib/hobnob/hobnob.db"),
        )
    try:
        return Path(url.removeprefix("sqlite:///")).expanduser().resolve()  # aliases share one lock
    except (RuntimeError, OSError) as error:
        raise BadInput(f"The path in store.url cannot be resolved: {error}.") from error


async def search(store: Store, text: str, **filters: Any) -> list[entries.Hit]:
    """Full-text search that includes the newest entries."""
    await index_words(store)
    return await store.read(entries.search, text, **filters)


async def index_words(store: Store) -> None:
    """Bring the full-text index up to date."""
    while await store.write(entries.index, step=256):
        pass


async def purge_entries(store: Store) -> None:
    """Remove the entries of deleted transcripts, in small steps so that other writes need not wait."""
    while await store.write(entries.purge):
        pass
