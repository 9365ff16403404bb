"""What the grep tool runs in a process of its own. It needs nothing but the standard library.

Its first argument is the descriptor of the workspace; what to look for comes as JSON on its input.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import resource
import stat
import sys
from collections.abc import Iterator
from typing import Any

SHOWN_CHARS, ALL_CHARS = 400, 50_000
_LINE = 65_536
_SNIFF = 8_192
_DEEPEST = 64
_MEMORY_BYTES = 512 * 1024 * 1024
_CPU_S = 30
_SKIPPED = {".git"}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def main() -> None:
    root, wanted = int(sys.argv[1]), json.load(sys.stdin)
    _limit(resource.RLIMIT_DATA, _MEMORY_BYTES)
    _limit(resource.RLIMIT_CPU, _CPU_S)  # nobody is left to end it when the gateway is killed
    try:
        answer = search(root, wanted)
    except (MemoryError, RecursionError, OverflowError):
        answer = {"problem": "The pattern needs too much memory."}
    except re.error as error:
        answer = {"problem": f"The pattern is no regular expression: {error}."}
    except OSError as error:
        answer = {"problem": f"{'/'.join(wanted['parts']) or '.'} cannot be searched: {error.strerror}."}
    json.dump(answer, sys.stdout)


def _limit(what: int, most: int) -> None:
    """As low as this, or as it is."""
    _, hard = resource.getrlimit(what)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(what, (most, most))


def search(root: int, wanted: dict[str, Any]) -> dict[str, Any]:
    text = re.escape(wanted["pattern"]) if wanted["literal"] else wanted["pattern"]
    pattern = re.compile(text, re.IGNORECASE if wanted["ignoreCase"] else 0)
    matches: list[dict[str, Any]] = []
    room, searched = ALL_CHARS, 0
    for path, fd in _files(root, wanted["parts"], wanted["glob"]):
        searched += 1
        for number, line in _lines(fd):
            if not pattern.search(line):
                continue
            shown = line[:SHOWN_CHARS]
            room -= len(shown) + len(path)
            if len(matches) == wanted["limit"] or room < 0:
                return {"count": len(matches), "matches": matches, "truncated": True}
            matches.append({"path": path, "line": number, "text": shown})
    return {"count": len(matches), "matches": matches, "filesSearched": searched}


def _files(root: int, parts: list[str], glob: str | None) -> Iterator[tuple[str, int]]:
    folder = root
    for name in parts[:-1]:
        folder = os.open(name, _FOLDER, dir_fd=folder)
    if not parts:
        yield from _below(root, "", glob, 0)
        return
    if stat.S_ISDIR(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode):
        yield from _below(os.open(parts[-1], _FOLDER, dir_fd=folder), "/".join(parts), glob, 0)
    else:
        fd = os.open(parts[-1], _READ, dir_fd=folder)
        if _is_plain(fd):
            yield "/".join(parts), fd


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


if __name__ == "__main__":
    main()
