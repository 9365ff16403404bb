"""The event loop's own look at the file, for a handful of rows.

To hand those from thread to thread and back costs several times what reading them does. That the loop is not
held up is seen to twice: SQLite breaks off what turns out to be more, and in one round of the loop there is
only so much time for looking. Whatever does not fit is for a reader thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from hobnob.store.engine.sqlite_file import connect
from hobnob.store.engine.tx import T

STEPS = 4_000  # of SQLite's machine, some ten to a row
ROW_BYTES = 4_096
ROUND_S = 0.002  # of one round of the loop
_BROKEN_OFF = (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_TOOBIG)


class ReadTooLarge(Exception):
    """It has to be read by somebody else."""


class LoopReader:
    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._spent_s = 0.0  # in this round of the loop
        self._may_break_off = False
        self._times = 0  # that STEPS went by in this glance
        self._connection = connect(path, read_only=True)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ROW_BYTES)
        self._connection.set_progress_handler(self._is_long, STEPS)

    def look(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do what needs a look, in a transaction. Raises TooMuch."""
        if self._spent_s == 0.0:
            self._loop.call_soon(self._rested)
        elif self._spent_s > ROUND_S:
            raise ReadTooLarge
        began = time.perf_counter()
        self._connection.execute("begin")
        try:
            self._times, self._may_break_off = 0, True
            return work(self._connection)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) in _BROKEN_OFF:
                raise ReadTooLarge from None
            raise
        finally:
            self._may_break_off = False  # not the end of the transaction
            self._connection.execute("rollback")
            self._spent_s += time.perf_counter() - began

    def close(self) -> None:
        self._connection.close()

    def _rested(self) -> None:
        self._spent_s = 0.0

    def _is_long(self) -> bool:
        """Whether SQLite shall break off. It counts on from glance to glance: the first time says little."""
        self._times += 1
        return self._may_break_off and self._times > 1
