"""A folder of files that is written whole or not at all, and removed again: what a sub-agent is handed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from hobnob.workspaces.guest import folders


def place(root: int, way: Sequence[str], files: Mapping[str, bytes], *, last: str) -> None:
    """Make the folder at the end of `way` hold just these files. `last` is written after all others.

    What is there and right is kept, the rest is written anew, what does not belong goes.
    """
    with ExitStack() as fds, ExitStack() as undo:
        opened = [root]
        for name in way:
            if folders.make(name, opened[-1]):
                undo.callback(_quietly, os.rmdir, name, dir_fd=opened[-1])
            opened.append(folders.enter(name, opened[-1], fds))
        undo.callback(_quietly, os.rmdir, way[-1], dir_fd=opened[-2])  # also when an earlier call made it
        undo.callback(_quietly, folders.clear, opened[-1])
        _fill(opened[-1], files, last)
        for folder in reversed(opened):
            os.fsync(folder)
        _check_reached(opened, way)
        undo.pop_all()


def remove(root: int, way: Sequence[str]) -> None:
    """Remove the folder that `place` made, with all that is in it by now. Does nothing when it is gone."""
    with suppress(FileNotFoundError), ExitStack() as fds:
        parent = root
        for name in way[:-1]:
            parent = folders.enter(name, parent, fds)
        if folders.is_folder(way[-1], parent):
            folders.clear(folders.enter(way[-1], parent, fds))
            os.rmdir(way[-1], dir_fd=parent)
        else:  # a link or a file was put in its place: it goes, what it leads to stays
            os.unlink(way[-1], dir_fd=parent)
        os.fsync(parent)


def _fill(folder: int, wanted: Mapping[str, bytes], last: str) -> None:
    """Make the folder hold just these files. The last one, which says that all are there, goes first."""
    right = {name for name, content in wanted.items() if folders.holds(name, folder, content)}
    if len(right) < len(wanted):
        right.discard(last)
        with suppress(FileNotFoundError):
            folders.drop(last, folder)
    folders.clear(folder, keep=right)
    for name, content in wanted.items():
        if name == last:
            os.fsync(folder)
        if name not in right:
            folders.create(name, folder, content)


def _check_reached(opened: Sequence[int], way: Sequence[str]) -> None:
    """Whether what we wrote to is still what the way leads to: a folder may have been swapped meanwhile."""
    with ExitStack() as fds:
        for name, parent, held in zip(way, opened, opened[1:], strict=False):
            if not os.path.samestat(os.fstat(folders.look(name, parent, fds)), os.fstat(held)):
                raise OSError(errno.ESTALE, "it was replaced while the files were written", name)


def _quietly(action: Callable[..., None], *args: Any, **more: Any) -> None:
    """For what is undone after a failure: the failure is what gets reported."""
    with suppress(OSError):
        action(*args, **more)
