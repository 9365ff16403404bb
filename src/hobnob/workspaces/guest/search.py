"""Search for lines. A pattern can take for ever, so this runs in its own process, which can be killed."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import Any

from hobnob.workspaces.guest.process import GuestError, as_text

LINE_CHARS, TOTAL_CHARS = 400, 50_000
_READ_BYTES = 65_536
_SNIFF = 8_192
_MAX_DEPTH = 64
_SKIPPED = {".git"}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def grep(
    root: int,
    path: Sequence[str],
    *,
    pattern: str,
    glob: str | None,
    ignore_case: bool,
    literal: bool,
    limit: int,
) -> dict[str, Any]:
    try:
        regex = re.compile(re.escape(pattern) if literal else pattern, re.IGNORECASE if ignore_case else 0)
        return _search(root, path, regex, glob, limit)
    except (MemoryError, RecursionError, OverflowError):
        raise GuestError("The pattern needs too much memory.") from None
    except re.error as error:
        raise GuestError(f"The pattern is not a regular expression: {error}.") from None


def _search(
    root: int, path: Sequence[str], regex: re.Pattern[str], glob: str | None, limit: int
) -> dict[str, Any]:
    matches: list[dict[str, Any]] = []
    room, searched = TOTAL_CHARS, 0
    for file_path, fd in _files(root, path, glob):
        searched += 1
        for number, line in _lines(fd):
            if not regex.search(line):
                continue
            excerpt = line[:LINE_CHARS]
            room -= len(excerpt) + len(file_path)
            if len(matches) == limit or room < 0:
                return {"count": len(matches), "matches": matches, "truncated": True}
            matches.append({"path": as_text(file_path), "line": number, "text": excerpt})
    return {"count": len(matches), "matches": matches, "filesSearched": searched}


def _files(root: int, path: Sequence[str], glob: str | None) -> Iterator[tuple[str, int]]:
    folder = root
    for name in path[:-1]:
        folder = os.open(name, _FOLDER, dir_fd=folder)
    if not path:
        yield from _below(root, "", glob, 0)
        return
    if stat.S_ISDIR(os.stat(path[-1], dir_fd=folder, follow_symlinks=False).st_mode):
        yield from _below(os.open(path[-1], _FOLDER, dir_fd=folder), "/".join(path), glob, 0)
    else:
        fd = os.open(path[-1], _READ, dir_fd=folder)
        if _is_regular(fd):
            yield "/".join(path), fd


def _below(folder: int, path: str, glob: str | None, depth: int) -> Iterator[tuple[str, int]]:
    """The files below a folder, each open only while it is searched."""
    for name in sorted(os.listdir(folder)):
        if name in _SKIPPED:
            continue
        file_path = f"{path}/{name}" if path else name
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode) and depth < _MAX_DEPTH:
                inner = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    yield from _below(inner, file_path, glob, depth + 1)
                finally:
                    os.close(inner)
            elif stat.S_ISREG(mode) and (glob is None or fnmatch.fnmatch(name, glob)):
                fd = os.open(name, _READ, dir_fd=folder)
                try:
                    if _is_regular(fd):
                        yield file_path, fd
                finally:
                    os.close(fd)
        except OSError:  # removed meanwhile, swapped for a link, or not readable
            continue


def _is_regular(fd: int) -> bool:
    info = os.fstat(fd)
    return stat.S_ISREG(info.st_mode) and info.st_nlink == 1


def _lines(fd: int) -> Iterator[tuple[int, str]]:
    with open(fd, "rb", closefd=False) as file:
        if b"\0" in file.read(_SNIFF):
            return
        file.seek(0)
        number = 1
        while piece := file.readline(_READ_BYTES):
            yield number, piece.decode("utf-8", "replace").rstrip("\n")
            number += piece.endswith(b"\n")
