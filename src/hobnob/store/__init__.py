"""The store: sessions, transcripts, turns and what follows from them, on disk.

Verbs are plain functions of a transaction, in a file per noun; `store.read(verb, …)` and
`store.write(verb, …)` run them. Several verbs in one function passed to `write` are one transaction.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from hobnob.errors import BadInput
from hobnob.store import entries, exchanges, ledger, sessions, turns
from hobnob.store.sqlite import open_sqlite
from hobnob.store.tx import Appended, Change, Store, TurnChanged, Tx

__all__ = [
    "Appended",
    "Change",
    "Store",
    "TurnChanged",
    "Tx",
    "entries",
    "exchanges",
    "ledger",
    "open_store",
    "search",
    "sessions",
    "sqlite_path",
    "turns",
]


def open_store(url: str) -> AbstractAsyncContextManager[Store]:
    """Open the store an address names."""
    return open_sqlite(sqlite_path(url))


def sqlite_path(url: str) -> Path:
    if not url.startswith("sqlite:///"):
        raise BadInput(
            f"store.url is {url!r}, which names no database Hobnob can use.",
            fix="Write sqlite:///<path>, for example sqlite:////var/lib/hobnob/hobnob.db.",
        )
    return Path(url.removeprefix("sqlite:///")).expanduser()


async def search(store: Store, text: str, **narrow: Any) -> list[entries.Hit]:
    """Full-text search that also finds what was written a moment ago."""
    while await store.write(entries.index, step=256):
        pass
    return await store.read(entries.search, text, **narrow)
