"""A read-only store, for a process that does not hold the lock."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

from hobnob.store.engine.sqlite import SqliteTx
from hobnob.store.engine.sqlite_file import connect, translate_errors
from hobnob.store.engine.tx import P, T, Verb


class SqliteReader:
    """`read` as in `Store`, on one connection. Each call sees the last commit of the writing process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = asyncio.Lock()  # a connection has one transaction at a time
        with translate_errors(path):
            self._connection: sqlite3.Connection = connect(path, read_only=True)

    async def read(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._lock:
            return await asyncio.to_thread(self._read, lambda tx: verb(tx, *args, **kwargs))

    def _read(self, verb: Callable[[SqliteTx], T]) -> T:
        with translate_errors(self._path):
            self._connection.execute("begin")
            try:
                return verb(SqliteTx(self._connection))
            finally:
                self._connection.execute("rollback")

    def close(self) -> None:
        self._connection.close()
