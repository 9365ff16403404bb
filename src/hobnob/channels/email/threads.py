"""What the channel remembers about mail threads: their subject, and the mails they consist of.

A thread belongs to one chat: a mail that refers to a mail of another chat begins a thread of its own, so
nobody learns a subject by naming the id of a mail. Losing this file costs subjects, no messages.
"""

from __future__ import annotations

import base64
import hashlib
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from hobnob.records import Struct

MAX_MAILS = 50_000
_PRUNE_EVERY = 500
_REFERENCES = 10  # that are sent: the first and the last ones
_SCHEMA = """
create table if not exists mails (
  chat text not null, message_id text not null, thread_id text not null, at integer not null,
  primary key (chat, message_id)
) without rowid;
create index if not exists mails_of_thread on mails (chat, thread_id, at);
create index if not exists mails_by_age on mails (at);
create table if not exists threads (
  chat text not null, thread_id text not null, subject text not null, primary key (chat, thread_id)
) without rowid;
"""


class Thread(Struct, frozen=True):
    subject: str
    message_ids: tuple[str, ...]
    """Its mails, oldest first; not all of a long thread."""


class Threads:
    """The methods block: call them in a thread."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "threads.db"
        self._added = 0

    def add(self, chat: str, message_id: str, references: Sequence[str], subject: str) -> str:
        """Remember a mail. Returns the id of its thread: of one that it refers to, else a new one."""
        with closing(self._open()) as database, database:
            known = [self._thread_of(database, chat, each) for each in (message_id, *reversed(references))]
            thread_id = next((each for each in known if each), None)
            thread_id = thread_id or thread_name(references[0] if references else message_id)
            self._insert(database, chat, message_id, thread_id, subject)
            return thread_id

    def sent(self, chat: str, message_id: str, thread_id: str, subject: str) -> None:
        """Remember a mail of the bot."""
        with closing(self._open()) as database, database:
            self._insert(database, chat, message_id, thread_id, subject)

    def get(self, chat: str, thread_id: str) -> Thread | None:
        with closing(self._open()) as database:
            place = (chat, thread_id)
            row = database.execute(
                "select subject from threads where (chat, thread_id) = (?, ?)", place
            ).fetchone()
            if row is None:
                return None
            ids = "select message_id from mails where (chat, thread_id) = (?, ?) order by at"
            first = database.execute(f"{ids} limit 1", place).fetchall()
            last = database.execute(f"{ids} desc limit {_REFERENCES - 1}", place).fetchall()
        return Thread(row[0], tuple(dict.fromkeys(text for (text,) in [*first, *reversed(last)])))

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._file, timeout=10)
        self._file.chmod(0o600)
        database.executescript(_SCHEMA)
        return database

    @staticmethod
    def _thread_of(database: sqlite3.Connection, chat: str, message_id: str) -> str | None:
        query = "select thread_id from mails where (chat, message_id) = (?, ?)"
        row = database.execute(query, (chat, message_id)).fetchone()
        return row[0] if row else None

    def _insert(
        self, database: sqlite3.Connection, chat: str, message_id: str, thread_id: str, subject: str
    ) -> None:
        mail = (chat, message_id, thread_id, time.time_ns())
        database.execute("insert or ignore into mails values (?, ?, ?, ?)", mail)
        database.execute("insert or ignore into threads values (?, ?, ?)", (chat, thread_id, subject))
        self._added += 1
        if self._added % _PRUNE_EVERY == 1:
            database.execute(
                "delete from mails where at <= (select at from mails order by at desc limit 1 offset ?)",
                (MAX_MAILS,),
            )
            database.execute(
                "delete from threads where not exists"
                " (select 1 from mails m where (m.chat, m.thread_id) = (threads.chat, threads.thread_id))"
            )


def thread_name(message_id: str) -> str:
    """A short id for a thread that begins with a mail. Ids of mails are long, and chosen by their senders."""
    digest = hashlib.sha256(message_id.encode("utf-8", "replace")).digest()
    return base64.b32encode(digest[:10]).decode().lower()
