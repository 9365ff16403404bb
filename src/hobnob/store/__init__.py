"""The store: sessions, transcripts, turns, exchanges and deliveries on disk.

Store verbs are plain functions of a transaction, in a module per noun. `store.read(verb, …)` and
`store.write(verb, …)` run them. Verbs called in one function passed to `write` share a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from hobnob.errors import NotFound, unwrap_exception_group
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
from hobnob.store.engine.tx import Reader, Store, Tx
from hobnob.store.engine.urls import (
    exists,
    holder,
    holders,
    is_postgres,
    open_engine,
    open_read_only,
    shown,
    sqlite_path,
)
from hobnob.store.mirror import Mirror

Lead = Callable[[str, Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]]

__all__ = [
    "Store",
    "Tx",
    "approvals",
    "deliveries",
    "devices",
    "entries",
    "exchanges",
    "exists",
    "holder",
    "holders",
    "idempotency",
    "index_words",
    "is_postgres",
    "jobs",
    "open_mirror",
    "open_reader",
    "open_store",
    "purge_entries",
    "retention",
    "search",
    "sessions",
    "shown",
    "sqlite_path",
    "turns",
]


@asynccontextmanager
async def open_store(url: str, *, transcripts: Path | None = None) -> AsyncIterator[Store]:
    """Open the store at a URL. With `transcripts`, also mirror each transcript as a file below it."""
    async with open_engine(url) as store:
        if transcripts is None:
            yield store
            return
        async with open_mirror(store, transcripts):
            yield store


@asynccontextmanager
async def open_mirror(store: Store, transcripts: Path, lead: Lead | None = None) -> AsyncIterator[None]:
    """Mirror each transcript as a file below `transcripts`; among several gateways while `lead` lets it."""
    mirror = Mirror(store, transcripts)
    with unwrap_exception_group():
        async with asyncio.TaskGroup() as group:
            task = group.create_task(
                mirror.run() if lead is None else lead("mirror", mirror.run), name="mirror"
            )
            try:
                yield
            finally:
                mirror.stop()
                if lead is not None and not mirror.running:
                    task.cancel()


@asynccontextmanager
async def open_reader(url: str) -> AsyncIterator[Reader]:
    """Open the store read-only, also while another process has it open. Raises NotFound without a store."""
    if not await asyncio.to_thread(exists, url):
        message = f"There is no store at {shown(url)} yet."
        raise NotFound(message, fix="It is created when Hobnob is first used.")
    with closing(await asyncio.to_thread(open_read_only, url)) as reader:
        yield reader


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
