"""Looking for lines. A pattern can take for ever, so this belongs into a process, which can be ended."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import Any

from hobnob.workspaces.guest.files import GuestError, as_text

SHOWN_CHARS, ALL_CHARS = 400, 50_000
_LINE = 65_536
_SNIFF = 8_192
_DEEPEST = 64
_SKIPPED = {".git"}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def grep(
    root: int,
    way: Sequence[str],
    *,
    pattern: str,
    glob: str | None,
    ignore_case: bool,
    literal: bool,
    limit: int,
) -> dict[str, Any]:
    try:
        wanted = re.compile(re.escape(pattern) if literal else pattern, re.IGNORECASE if ignore_case else 0)
        return _found(root, way, wanted, glob, limit)
    except (MemoryError, RecursionError, OverflowError):
        raise GuestError("The pattern needs too much memory.") from None
    except re.error as error:
        raise GuestError(f"The pattern is no regular expression: {error}.") from None


def _found(
    root: int, way: Sequence[str], wanted: re.Pattern[str], glob: str | None, limit: int
) -> dict[str, Any]:
    matches: list[dict[str, Any]] = []
    room, searched = ALL_CHARS, 0
    for path, fd in _files(root, way, glob):
        searched += 1
        for number, line in _lines(fd):
            if not wanted.search(line):
                continue
            shown = line[:SHOWN_CHARS]
            room -= len(shown) + len(path)
            if len(matches) == limit or room < 0:
                return {"count": len(matches), "matches": matches, "truncated": True}
            matches.append({"path": as_text(path), "line": number, "text": shown})
    return {"count": len(matches), "matches": matches, "filesSearched": searched}


def _files(root: int, way: Sequence[str], glob: str | None) -> Iterator[tuple[str, int]]:
    folder = root
    for name in way[:-1]:
        folder = os.open(name, _FOLDER, dir_fd=folder)
    if not way:
        yield from _below(root, "", glob, 0)
        return
    if stat.S_ISDIR(os.stat(way[-1], dir_fd=folder, follow_symlinks=False).st_mode):
        yield from _below(os.open(way[-1], _FOLDER, dir_fd=folder), "/".join(way), glob, 0)
    else:
        fd = os.open(way[-1], _READ, dir_fd=folder)
        if _is_plain(fd):
            yield "/".join(way), fd


def _below(folder: int, path: str, glob: str | None, depth: int) -> Iterator[tuple[str, int]]:
    """The files below a folder, each open while it is looked at."""
    for name in sorted(os.listdir(folder)):
        if name in _SKIPPED:
            continue
        here = f"{path}/{name}" if path else name
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode) and depth < _DEEPEST:
                inner = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    yield from _below(inner, here, glob, depth + 1)
                finally:
                    os.close(inner)
            elif stat.S_ISREG(mode) and (glob is None or fnmatch.fnmatch(name, glob)):
                fd = os.open(name, _READ, dir_fd=folder)
                try:
                    if _is_plain(fd):
                        yield here, fd
                finally:
                    os.close(fd)
        except OSError:  # gone since, swapped for a link, or not to be read
            continue


def _is_plain(fd: int) -> bool:
    there = os.fstat(fd)
    return stat.S_ISREG(there.st_mode) and there.st_nlink == 1


def _lines(fd: int) -> Iterator[tuple[int, str]]:
    with open(fd, "rb", closefd=False) as file:
        if b"\0" in file.read(_SNIFF):
            return
        file.seek(0)
        number = 1
        while piece := file.readline(_LINE):
            yield number, piece.decode("utf-8", "replace").rstrip("\n")
            number += piece.endswith(b"\n")
