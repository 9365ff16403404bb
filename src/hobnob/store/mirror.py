"""The mirror: every transcript as a JSONL file, for people and `jq`.

The database is the truth and the files follow it. The mirror reads the entries in the order they were
committed, like the full-text index, and remembers in the database how far it has come; what a crash left
behind is caught up at the next start, when every file is looked at once. A file that is missing, or whose end
is not what the database says, is written anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from hobnob import statedir
from hobnob.errors import HobnobError, StoreUnwritable
from hobnob.events import Change
from hobnob.store import entries
from hobnob.store.engine.tx import Store, Tx
from hobnob.types import Entry

_log = logging.getLogger(__name__)
_STEP = 500
_KNOWN_FILES = 10_000
_SAVE_EVERY_S = 5.0  # between two notes of how far we are
_GATHER_S = 0.05  # so that a busy store is followed in larger steps
_AGAIN_S = 5.0  # after trouble with the disk


def path_of(home: Path, agent_id: str, session_id: str) -> Path:
    return home / name_of(agent_id, session_id)


def name_of(agent_id: str, session_id: str) -> str:
    """A transcript's file, as seen from the state directory."""
    return f"agents/{agent_id}/sessions/{session_id}.jsonl"


def header(session_id: str, session_key: str, created_at_ms: int) -> dict[str, Any]:
    """The first line of a transcript."""
    return {
        "type": "session",
        "version": 3,
        "id": session_id,
        "timestamp": _iso(created_at_ms),
        "sessionKey": session_key,
    }


def line(entry: Entry) -> dict[str, Any]:
    """An entry as a line of a transcript. Its id is its number: transcripts have no branches."""
    return {
        "type": "message",
        "id": f"{entry.seq:08x}",
        "parentId": f"{entry.seq - 1:08x}" if entry.seq > 1 else None,
        "timestamp": _iso(entry.created_at_ms),
        "seq": entry.seq,
        "message": orjson.Fragment(entry.body),
    }


def render(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(each) + b"\n" for each in lines)


def header_of(tx: Tx, session_id: str) -> dict[str, Any]:
    """The first line of an existing transcript, by its id."""
    session_key, _, created_at_ms = tx.rows("transcript_get", session_id=session_id)[0]
    return header(session_id, session_key, created_at_ms)


class Mirror:
    """Keeps the files under `home` in step with the store. `run` lives until `stop`."""

    def __init__(self, store: Store, home: Path) -> None:
        self._store = store
        self._home = home
        self._work = asyncio.Event()
        self._stop = asyncio.Event()
        self._saved_at = time.monotonic()
        self._position: int | None = None
        self._saved: int | None = None
        self._known: dict[str, tuple[Path, int, int]] = {}  # session_id: file, its last seq, its size
        self._given_up: set[str] = set()
        store.watch(self._wake)

    def _wake(self, _changes: list[Change]) -> None:
        self._work.set()

    def stop(self) -> None:
        """Catch up once more, then end `run`."""
        self._stop.set()
        self._work.set()

    async def run(self) -> None:
        swept: str | None = ""
        while True:
            self._work.clear()
            last = (
                self._stop.is_set()
            )  # asked before the step, which then sees all that was written till then
            try:
                busy = await self._step()
                if not busy and not last and swept is not None:
                    swept = await self._store.read(self._sweep, swept)
                    busy = True
                if last or time.monotonic() > self._saved_at + _SAVE_EVERY_S:
                    await self._save()
            except (OSError, HobnobError) as trouble:
                # The files can wait: the transcripts are safe in the database.
                _log.warning("transcript files cannot be written: %s", trouble)
                await self._pause(_AGAIN_S)
                busy = not last
            if last and not busy:
                return
            if not busy:
                await self._work.wait()
                await self._pause(_GATHER_S)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _step(self) -> bool:
        """Remove what was deleted and write what is new. False when there was nothing to do."""
        gone = await self._store.read(lambda tx: tx.rows("removals"))
        for session_id, agent_id in gone:
            path_of(self._home, agent_id, session_id).unlink(missing_ok=True)
            await self._store.write(_removed, session_id)
        return bool(await self._store.read(self._follow)) or bool(gone)

    async def _save(self) -> None:
        if self._position != self._saved:
            position = self._position
            await self._store.write(lambda tx: tx.run("follower_set", name="mirror", position=position))
            self._saved = position
        self._saved_at = time.monotonic()

    def _follow(self, tx: Tx) -> int:
        if self._position is None:
            self._position = self._saved = tx.value("follower_get", name="mirror") or 0
        rows = tx.rows("entries_from_position", position=self._position, limit=_STEP)
        new: dict[str, list[Entry]] = {}
        for row in rows:
            new.setdefault(row[1], []).append(entries.from_row(row[1:]))
        for session_id, lines in new.items():
            self._catch_up(tx, session_id, lines)
        if rows:
            self._position = rows[-1][0]
        return len(rows)

    def _sweep(self, tx: Tx, after: str) -> str | None:
        """Look at the files of the next transcripts, and mend those that are missing, behind or ahead."""
        ids = [row[0] for row in tx.rows("transcripts_after", after=after, limit=_STEP)]
        for session_id in ids:
            if entries.last_seq(tx, session_id):
                self._catch_up(tx, session_id)
        return ids[-1] if ids else None

    def _catch_up(self, tx: Tx, session_id: str, at_hand: list[Entry] | None = None) -> None:
        """Append to a transcript's file what it lacks. One that cannot be written does not hold up others."""
        try:
            found = self._state(tx, session_id)
            if found is None:
                return
            path, last, size = found
            lacking = [entry for entry in at_hand or () if entry.seq > last]
            if not lacking or lacking[0].seq != last + 1:  # the file is behind, or we came to look at it
                lacking = entries.after(tx, session_id, last, limit=_STEP)
            while lacking:
                size = _append(path, size, render(line(entry) for entry in lacking))
                last = lacking[-1].seq
                lacking = entries.after(tx, session_id, last, limit=_STEP) if len(lacking) == _STEP else []
            self._known[session_id] = (path, last, size)
        except (FileExistsError, IsADirectoryError, PermissionError, StoreUnwritable) as trouble:
            if session_id not in self._given_up:
                _log.warning("the transcript file of %s cannot be written: %s", session_id, trouble)
                self._given_up.add(session_id)

    def _state(self, tx: Tx, session_id: str) -> tuple[Path, int, int] | None:
        """The transcript's file with its last number and size, made sound first. None for a deleted one."""
        known = self._known.get(session_id)
        if known and _size(known[0]) == known[2]:
            return known
        found = tx.rows("transcript_get", session_id=session_id)
        if not found:
            return None
        session_key, agent_id, created_at_ms = found[0]
        path = path_of(self._home, agent_id, session_id)
        last = _last_sound(tx, path, session_id)
        if last is None:
            statedir.private_dir(path.parent)
            path.unlink(missing_ok=True)
            os.close(statedir.open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            _append(path, 0, render([header(session_id, session_key, created_at_ms)]))
            last = 0
        if len(self._known) >= _KNOWN_FILES:
            self._known.clear()
        self._known[session_id] = (path, last, _size(path))
        return self._known[session_id]


def _last_sound(tx: Tx, path: Path, session_id: str) -> int | None:
    """The number of the file's last line, None when that is not a line of this transcript."""
    found = _last_line(path)
    try:
        last = orjson.loads(found)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(last, dict):
        return None
    if last.get("type") == "session":
        return 0 if last.get("id") == session_id else None
    seq = last.get("seq")
    if not isinstance(seq, int):
        return None
    kept = tx.all(Entry, "entries_after", session_id=session_id, after=seq - 1, limit=1)
    return seq if kept and render([line(kept[0])]) == found else None


def _append(path: Path, size: int, data: bytes) -> int:
    """Write at the end of a file, all of it or nothing. Returns the new size."""
    fd = statedir.open_private(path, os.O_WRONLY | os.O_APPEND)
    try:
        written = 0
        while written < len(data):
            written += os.write(fd, data[written:])
    except OSError:
        os.ftruncate(fd, size)  # a full disk must not leave half a line behind
        raise
    finally:
        os.close(fd)
    return size + len(data)


def _removed(tx: Tx, session_id: str) -> None:
    tx.run("removal_done", session_id=session_id)


def _last_line(path: Path) -> bytes:
    """The file's last line, or nothing when it is missing or ends in the middle of a line."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            window = 65536
            while True:
                start = max(size - window, 0)
                file.seek(start)
                tail = file.read(size - start)
                if not tail.endswith(b"\n"):
                    return b""
                _, newline, last = tail[:-1].rpartition(b"\n")
                if newline or start == 0:
                    return last + b"\n"
                window *= 8
    except FileNotFoundError:
        return b""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
