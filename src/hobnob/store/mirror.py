"""The mirror: every transcript as a JSONL file, for people and `jq`.

The database is authoritative. The mirror reads entries in commit order, like the full-text index, and saves
its position in the database. After a start it also checks every file once, so it repairs what a crash left
behind. A file that is missing, or whose last line differs from the database, is written again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from hobnob import statedir
from hobnob.errors import HobnobError, StoreUnwritable
from hobnob.events import Change
from hobnob.store import entries
from hobnob.store.engine.tx import P, Store, T, Tx, Verb
from hobnob.types import Entry

_log = logging.getLogger(__name__)
_BATCH = 500
_MAX_CACHED_FILES = 1_000
_MAX_UNWRITABLE = 1_000
_SAVE_EVERY_S = 5.0  # the position
_CHECK_EVERY_S = 60.0  # for transcripts that were removed, which no event tells
_DEBOUNCE_S = 0.05  # larger batches while the store is busy
_RETRY_S = 5.0  # after a disk error


def path_of(home: Path, agent_id: str, session_id: str) -> Path:
    return home / name_of(agent_id, session_id)


def name_of(agent_id: str, session_id: str) -> str:
    """The path of a transcript's file, relative to the state directory."""
    return f"agents/{agent_id}/sessions/{session_id}.jsonl"


def header(session_id: str, session_key: str, created_at_ms: int) -> dict[str, Any]:
    """The first line of a transcript file."""
    return {
        "type": "session",
        "version": 3,
        "id": session_id,
        "timestamp": _iso(created_at_ms),
        "sessionKey": session_key,
    }


def line(entry: Entry) -> dict[str, Any]:
    """An entry as a line of a transcript file. Ids are sequence numbers: transcripts have no branches."""
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
    """The header of a transcript, read from the database."""
    session_key, _, created_at_ms = tx.rows("transcript_get", session_id=session_id)[0]
    return header(session_id, session_key, created_at_ms)


class Mirror:
    """Keeps the files under `home` in sync with the store. `run` returns after `stop`."""

    def __init__(self, store: Store, home: Path) -> None:
        self._store = store
        self._home = home
        self._work = asyncio.Event()
        self._stop = asyncio.Event()
        self._saved_at = time.monotonic()
        self._position: int | None = None
        self._saved: int | None = None
        self.running = False
        # The files written last. session_id: path, last seq, size
        self._files: OrderedDict[str, tuple[Path, int, int]] = OrderedDict()
        self._unwritable: set[str] = set()  # session ids, each logged once
        store.watch(self._wake)

    def _wake(self, _changes: list[Change]) -> None:
        self._work.set()

    def stop(self) -> None:
        """Catch up once more, then let `run` return."""
        self._stop.set()
        self._work.set()

    async def run(self) -> None:
        self.running, self._position = True, None  # another gateway may have written files meanwhile
        self._files.clear()
        try:
            await self._run()
        finally:
            self.running = False

    async def _run(self) -> None:
        checked: str | None = ""  # the last session id whose file was checked; None when all were
        while True:
            self._work.clear()
            last = self._stop.is_set()  # read before the step, which then sees everything written until stop
            try:
                busy = await self._step()
                if not busy and not last and checked is not None:
                    checked = await self._write_files(self._check_files, checked)
                    busy = True
                if last or time.monotonic() > self._saved_at + _SAVE_EVERY_S:
                    await self._save()
            except (OSError, HobnobError) as error:
                # Not fatal: the transcripts are safe in the database.
                _log.warning("transcript files not written, next attempt in %g s: %s", _RETRY_S, error)
                await self._pause(_RETRY_S)
                busy = not last
            if last and not busy:
                return
            if not busy:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_EVERY_S):
                        await self._work.wait()
                await self._pause(_DEBOUNCE_S)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _step(self) -> bool:
        """Delete files of deleted transcripts and write new entries. False when there was nothing to do."""
        deleted, written = await self._write_files(self._update_files)
        for session_id in deleted:
            await self._store.write(_removal_done, session_id)
        return bool(deleted or written)

    async def _write_files(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a verb that writes files. Cancelled, it ends first: the next run must not write beside it."""
        writing = asyncio.ensure_future(self._store.read(verb, *args, **kwargs))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.gather(writing, return_exceptions=True)
            raise

    async def _save(self) -> None:
        if self._position != self._saved:
            position = self._position
            await self._store.write(lambda tx: tx.run("follower_set", name="mirror", position=position))
            self._saved = position
        self._saved_at = time.monotonic()

    def _update_files(self, tx: Tx) -> tuple[list[str], int]:
        """Delete the files of deleted transcripts, then write new entries. Returns their ids and number."""
        deleted = []
        for session_id, agent_id in tx.rows("removals"):
            path_of(self._home, agent_id, session_id).unlink(missing_ok=True)
            self._files.pop(session_id, None)
            deleted.append(session_id)
        return deleted, self._write_new(tx)

    def _write_new(self, tx: Tx) -> int:
        """Write the next batch of entries. Returns its size."""
        if self._position is None:
            self._position = self._saved = tx.value("follower_get", name="mirror") or 0
        rows = tx.rows("entries_from_position", position=self._position, limit=_BATCH)
        new: dict[str, list[Entry]] = {}
        for row in rows:
            new.setdefault(row[1], []).append(entries.from_row(row[1:]))
        for session_id, batch in new.items():
            self._catch_up(tx, session_id, batch)
        if rows:
            self._position = rows[-1][0]
        return len(rows)

    def _check_files(self, tx: Tx, after: str) -> str | None:
        """Check the next batch of files and repair them. Returns its last session id, None at the end."""
        ids = [row[0] for row in tx.rows("transcripts_after", after=after, limit=_BATCH)]
        for session_id in ids:
            if entries.last_seq(tx, session_id):
                self._catch_up(tx, session_id)
        return ids[-1] if ids else None

    def _catch_up(self, tx: Tx, session_id: str, batch: list[Entry] | None = None) -> None:
        """Append missing entries to a transcript's file. An unwritable file does not block the others."""
        try:
            state = self._file_state(tx, session_id)
            if state is None:
                return
            path, last, size = state
            missing = [entry for entry in batch or () if entry.seq > last]
            if not missing or missing[0].seq != last + 1:  # the file is behind, or is only checked
                missing = entries.after(tx, session_id, last, limit=_BATCH)
            while missing:
                size = _append(path, size, render(line(entry) for entry in missing))
                last = missing[-1].seq
                missing = entries.after(tx, session_id, last, limit=_BATCH) if len(missing) == _BATCH else []
            self._cache(session_id, (path, last, size))
        except (FileExistsError, IsADirectoryError, PermissionError, StoreUnwritable) as error:
            if session_id not in self._unwritable:
                _log.warning("transcript file of %s skipped, it cannot be written: %s", session_id, error)
                if len(self._unwritable) >= _MAX_UNWRITABLE:
                    self._unwritable.clear()  # logged again, rather than remembered for ever
                self._unwritable.add(session_id)

    def _file_state(self, tx: Tx, session_id: str) -> tuple[Path, int, int] | None:
        """Path, last seq and size of a file; a damaged one is replaced. None for a deleted transcript."""
        cached = self._files.get(session_id)
        if cached and _size(cached[0]) == cached[2]:
            return cached
        rows = tx.rows("transcript_get", session_id=session_id)
        if not rows:
            return None
        session_key, agent_id, created_at_ms = rows[0]
        path = path_of(self._home, agent_id, session_id)
        last = _last_seq(tx, path, session_id)
        if last is None:
            statedir.private_dir(path.parent)
            path.unlink(missing_ok=True)
            os.close(statedir.open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            _append(path, 0, render([header(session_id, session_key, created_at_ms)]))
            last = 0
        return self._cache(session_id, (path, last, _size(path)))

    def _cache(self, session_id: str, state: tuple[Path, int, int]) -> tuple[Path, int, int]:
        """Keep the state of a file, and forget that of the file written least recently."""
        self._files[session_id] = state
        self._files.move_to_end(session_id)
        if len(self._files) > _MAX_CACHED_FILES:
            self._files.popitem(last=False)
        return state


def _last_seq(tx: Tx, path: Path, session_id: str) -> int | None:
    """The seq of the file's last line; None when the line differs from the database."""
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
    """Append all of the data or nothing. Returns the new size."""
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


def _removal_done(tx: Tx, session_id: str) -> None:
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
