"""Small bounded reads on the event loop.

Passing a few rows between threads costs several times more than reading them. Two limits keep the loop
responsive: SQLite interrupts a read that turns out large, and each iteration of the loop has a time budget
for reads. A read that exceeds a limit goes to a reader thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from hobnob.store.engine.sqlite_file import connect
from hobnob.store.engine.tx import T

MAX_STEPS = 4_000  # SQLite virtual machine instructions, about ten per row
MAX_ROW_BYTES = 4_096
BUDGET_S = 0.002  # per iteration of the loop
_CACHE_KB = 2048
_LIMIT_ERRORS = (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_TOOBIG)


class ReadTooLarge(Exception):
    """The read exceeds a limit: it belongs in a reader thread."""


class LoopReader:
    """A read-only connection that only the event loop's thread uses."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._spent_s = 0.0  # in this iteration of the loop
        self._interruptible = False
        self._progress_calls = 0  # in this read
        self._connection = connect(path, read_only=True)
        self._connection.execute(f"pragma cache_size = -{_CACHE_KB}")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
        self._connection.set_progress_handler(self._exceeds_limit, MAX_STEPS)

    def read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Call a function in a read transaction. Raises ReadTooLarge."""
        if self._spent_s == 0.0:
            self._loop.call_soon(self._reset_budget)
        elif self._spent_s > BUDGET_S:
            raise ReadTooLarge
        started = time.perf_counter()
        self._connection.execute("begin")
        try:
            self._progress_calls, self._interruptible = 0, True
            return function(self._connection)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) in _LIMIT_ERRORS:
                raise ReadTooLarge from None
            raise
        finally:
            self._interruptible = False  # the rollback must not be interrupted
            self._connection.execute("rollback")
            self._spent_s += time.perf_counter() - started

    def close(self) -> None:
        self._connection.close()

    def _reset_budget(self) -> None:
        self._spent_s = 0.0

    def _exceeds_limit(self) -> bool:
        """Whether SQLite interrupts the read.

        SQLite counts steps across reads, so the first call comes after an unknown part of MAX_STEPS.
        """
        self._progress_calls += 1
        return self._interruptible and self._progress_calls > 1
