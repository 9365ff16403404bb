"""Reading, writing, changing and listing files below a folder that is a descriptor."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, BinaryIO

from hobnob.workspaces.guest import folders

Row = dict[str, Any]

READ_CHARS, LINE_CHARS = 50_000, 2_000
EDIT_BYTES = 10_000_000
DIFF_CHARS = 8_000
_SNIFF = 8_192


class GuestError(Exception):
    """Why something cannot be done, for whoever asked for it, and what may help."""

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message, fix)
        self.message = message
        self.fix = fix


def read(root: int, way: Sequence[str], *, offset: int, limit: int) -> Row:
    name = _file(way)
    with ExitStack() as fds:
        fd = folders.open_file(name, folders.descend(way[:-1], root, fds), fds)
        size = os.fstat(fd).st_size
        with open(fd, "rb", closefd=False) as file:
            if b"\0" in file.read(_SNIFF):
                return {"binary": True, "bytes": size, "mimeType": _kind(name)}
            file.seek(0)
            return {"bytes": size} | _lines(file, offset, limit)


def write(root: int, way: Sequence[str], *, content: str) -> Row:
    name, data = _file(way), _bytes(content)
    with ExitStack() as fds:
        folder = folders.descend(way[:-1], root, fds, making=True)
        new = folders.put(name, folder, data)
    return {"status": "ok", "created": new, "bytes": len(data)}


def edit(root: int, way: Sequence[str], *, old: str, new: str, everywhere: bool) -> Row:
    name = _file(way)
    with ExitStack() as fds:
        folder = folders.descend(way[:-1], root, fds)
        fd = folders.open_file(name, folder, fds)
        if os.fstat(fd).st_size > EDIT_BYTES:
            raise GuestError(f"The file is larger than {EDIT_BYTES:,} bytes: too large to edit.")
        with open(fd, "rb", closefd=False) as file:
            before = _text(file.read(EDIT_BYTES + 1))
        count = before.count(old)
        if count == 0:
            raise GuestError("oldText does not occur in the file.", "Read it, and copy the text exactly.")
        if count > 1 and not everywhere:
            fix = "Give more of the text around it, or set replaceAll to true."
            raise GuestError(f"oldText occurs {count} times in the file.", fix)
        after = before.replace(old, new)
        folders.put(name, folder, _bytes(after))
    return {"status": "ok", "replaced": count, "diff": _diff(before, after, "/".join(way))}


def ls(root: int, way: Sequence[str], *, limit: int) -> Row:
    with ExitStack() as fds:
        folder = folders.descend(way, root, fds)
        found = sorted(os.listdir(folder))
        entries = [_entry(name, folder) for name in found[:limit]]
    more = {"leftOut": len(found) - limit} if len(found) > limit else {}
    return {"count": len(found), "entries": entries} | more


def as_text(name: str) -> str:
    """The name of a file so that it can be shown, whatever bytes it is made of."""
    return name.encode("utf-8", "replace").decode()


def _file(way: Sequence[str]) -> str:
    if not way:
        raise GuestError("The workspace itself is a folder, not a file.")
    return way[-1]


def _kind(name: str) -> str:
    import mimetypes

    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def _lines(file: BinaryIO, offset: int, limit: int) -> Row:
    kept: list[str] = []
    room, cut = READ_CHARS, False
    number = 1
    for line, whole in _each(file):
        if number >= offset:
            if len(kept) == limit or len(line) > room:
                content = "".join(kept)
                return {"content": content, "offset": offset, "lines": len(kept), "nextOffset": number}
            kept.append(line if whole else f"{line} [… line cut …]\n")
            room -= len(line)
            cut |= not whole
        number += 1
    answer: Row = {"content": "".join(kept), "offset": offset, "lines": len(kept), "totalLines": number - 1}
    return answer | ({"linesCut": True} if cut else {})


def _each(file: BinaryIO) -> Iterator[tuple[str, bool]]:
    """The lines, each cut at what is shown of one, and whether it is whole. The rest is passed over last."""
    while piece := file.readline(4 * LINE_CHARS):
        line = piece.decode("utf-8", "replace")
        whole = piece.endswith(b"\n") or len(piece) < 4 * LINE_CHARS
        fits = whole and len(line) <= LINE_CHARS
        yield (line if fits else line[:LINE_CHARS]), fits
        while not whole and piece and not piece.endswith(b"\n"):
            piece = file.readline(1 << 20)


def _text(data: bytes) -> str:
    try:
        if b"\0" not in data:
            return data.decode()
    except UnicodeDecodeError:
        pass
    raise GuestError("The file is no UTF-8 text: it cannot be edited.")


def _bytes(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    if len(data) > EDIT_BYTES:
        raise GuestError(f"That is more than {EDIT_BYTES:,} bytes, the most a file tool writes.")
    return data


def _diff(before: str, after: str, path: str) -> str:
    if len(before) + len(after) > 1_000_000:
        return "(the file is too large to show the change)"
    import difflib

    lines = difflib.unified_diff(
        before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}", n=2
    )
    text = "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
    return text if len(text) <= DIFF_CHARS else f"{text[:DIFF_CHARS]}\n[… the diff goes on …]"


def _entry(name: str, folder: int) -> Row:
    shown = as_text(name)
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:  # gone since
        return {"name": shown}
    if stat.S_ISDIR(there.st_mode):
        return {"name": f"{shown}/"}
    if stat.S_ISLNK(there.st_mode):
        return {"name": f"{shown}@"}
    return {"name": shown, "bytes": there.st_size}
