"""The file tools: read, write, edit and list files below a root folder, given as a descriptor."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, BinaryIO

from hobnob.workspaces.guest import diffs, safe_paths
from hobnob.workspaces.guest.process import GuestError, as_text

Row = dict[str, Any]

READ_CHARS, LINE_CHARS = 50_000, 2_000
EDIT_BYTES = 10_000_000
DIFF_CHARS = 8_000
_SNIFF = 8_192
_BLOCK = 65_536


def read(root: int, path: Sequence[str], *, offset: int, limit: int) -> Row:
    name = _file_name(path)
    with ExitStack() as fds:
        fd = safe_paths.open_file(name, safe_paths.descend(path[:-1], root, fds), fds)
        size = os.fstat(fd).st_size
        with open(fd, "rb", closefd=False) as file:
            if b"\0" in file.read(_SNIFF):
                return {"binary": True, "bytes": size, "mimeType": _mime_type(name)}
            file.seek(0)
            return {"bytes": size} | _lines(file, offset, limit)


def write(root: int, path: Sequence[str], *, content: str) -> Row:
    name, data = _file_name(path), _bytes(content)
    with ExitStack() as fds:
        folder = safe_paths.descend(path[:-1], root, fds, create=True)
        new = safe_paths.replace_file(name, folder, data)
    return {"status": "ok", "created": new, "bytes": len(data)}


def edit(root: int, path: Sequence[str], *, old: str, new: str, replace_all: bool) -> Row:
    name = _file_name(path)
    with ExitStack() as fds:
        folder = safe_paths.descend(path[:-1], root, fds)
        fd = safe_paths.open_file(name, folder, fds)
        if os.fstat(fd).st_size > EDIT_BYTES:
            raise GuestError(f"The file is larger than {EDIT_BYTES:,} bytes: too large to edit.")
        with open(fd, "rb", closefd=False) as file:
            before = _text(file.read(EDIT_BYTES + 1))
        count = before.count(old)
        if count == 0:
            raise GuestError("oldText does not occur in the file.", "Read it, and copy the text exactly.")
        if count > 1 and not replace_all:
            fix = "Give more of the text around it, or set replaceAll to true."
            raise GuestError(f"oldText occurs {count} times in the file.", fix)
        if len(before) + count * (len(new) - len(old)) > EDIT_BYTES:  # before it takes the memory
            raise GuestError(f"The file would become larger than {EDIT_BYTES:,} bytes.")
        after = before.replace(old, new)
        safe_paths.replace_file(name, folder, _bytes(after))
    return {"status": "ok", "replaced": count, "diff": _diff(before, after, "/".join(path))}


def ls(root: int, path: Sequence[str], *, limit: int) -> Row:
    with ExitStack() as fds:
        folder = safe_paths.descend(path, root, fds)
        found = sorted(os.listdir(folder))
        entries = [_entry(name, folder) for name in found[:limit]]
    more = {"leftOut": len(found) - limit} if len(found) > limit else {}
    return {"count": len(found), "entries": entries} | more


def _file_name(path: Sequence[str]) -> str:
    if not path:
        raise GuestError("The workspace itself is a folder, not a file.")
    return path[-1]


def _mime_type(name: str) -> str:
    import mimetypes

    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def _lines(file: BinaryIO, offset: int, limit: int) -> Row:
    kept: list[str] = []
    room, cut = READ_CHARS, False
    number = 1 + _skip_lines(file, offset - 1)
    for line, complete in _cut_lines(file):
        if len(kept) == limit or len(line) > room:
            content = "".join(kept)
            return {"content": content, "offset": offset, "lines": len(kept), "nextOffset": number}
        kept.append(line if complete else f"{line} [… line cut …]\n")
        room -= len(line)
        cut |= not complete
        number += 1
    answer: Row = {"content": "".join(kept), "offset": offset, "lines": len(kept), "totalLines": number - 1}
    return answer | ({"linesCut": True} if cut else {})


def _skip_lines(file: BinaryIO, count: int) -> int:
    """Skip lines without looking at each, which would take minutes. Returns how many there were."""
    skipped, ends_in_line = 0, False
    while skipped < count and (block := file.read(_BLOCK)):
        found = block.count(b"\n")
        if skipped + found >= count:
            end = 0
            for _ in range(count - skipped):
                end = block.index(b"\n", end) + 1
            file.seek(end - len(block), os.SEEK_CUR)
            return count
        skipped += found
        ends_in_line = not block.endswith(b"\n")
    return skipped + ends_in_line


def _cut_lines(file: BinaryIO) -> Iterator[tuple[str, bool]]:
    """The lines, each cut at LINE_CHARS, and whether it is complete. The rest of a cut line is skipped."""
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
    raise GuestError("The file is not UTF-8 text: it cannot be edited.")


def _bytes(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    if len(data) > EDIT_BYTES:
        raise GuestError(f"The content has more than {EDIT_BYTES:,} bytes, the limit of the file tools.")
    return data


def _diff(before: str, after: str, path: str) -> str:
    lines = diffs.unified(before, after, f"a/{path}", f"b/{path}")
    if lines is None:
        return "(the change is too large to show)"
    text = "".join(f"{line}\n" for line in lines)
    return text if len(text) <= DIFF_CHARS else f"{text[:DIFF_CHARS]}\n[… diff cut …]"


def _entry(name: str, folder: int) -> Row:
    text = as_text(name)
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:  # removed meanwhile
        return {"name": text}
    if stat.S_ISDIR(info.st_mode):
        return {"name": f"{text}/"}
    if stat.S_ISLNK(info.st_mode):
        return {"name": f"{text}@"}
    return {"name": text, "bytes": info.st_size}
