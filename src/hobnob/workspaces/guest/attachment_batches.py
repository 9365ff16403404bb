"""The attachments of one spawn: a folder of files that is written atomically, and removed again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from hobnob.workspaces.guest import safe_paths


def write(root: int, path: Sequence[str], files: Mapping[str, bytes], *, last: str) -> None:
    """Make the folder at `path` contain exactly these files. `last` is written after all others.

    Files that are there with the right content are kept, others are rewritten, unknown entries are removed. A
    failure removes the folder again.
    """
    with ExitStack() as fds, ExitStack() as rollback:
        opened = [root]
        for name in path:
            if safe_paths.make_folder(name, opened[-1]):
                rollback.callback(_ignore_errors, os.rmdir, name, dir_fd=opened[-1])
            opened.append(safe_paths.open_private_folder(name, opened[-1], fds))
        # Also when an earlier call made it.
        rollback.callback(_ignore_errors, os.rmdir, path[-1], dir_fd=opened[-2])
        rollback.callback(_ignore_errors, safe_paths.clear_folder, opened[-1])
        _fill(opened[-1], files, last)
        for folder in reversed(opened):
            os.fsync(folder)
        _check_not_replaced(opened, path)
        rollback.pop_all()


def remove(root: int, path: Sequence[str]) -> None:
    """Remove the folder that `write` made, with everything in it. Does nothing when it is gone."""
    with suppress(FileNotFoundError), ExitStack() as fds:
        parent = root
        for name in path[:-1]:
            parent = safe_paths.open_private_folder(name, parent, fds)
        if safe_paths.is_folder(path[-1], parent):
            safe_paths.clear_folder(safe_paths.open_private_folder(path[-1], parent, fds))
            os.rmdir(path[-1], dir_fd=parent)
        else:  # replaced by a link or a file: that is removed, the target of a link stays
            os.unlink(path[-1], dir_fd=parent)
        os.fsync(parent)


def _fill(folder: int, files: Mapping[str, bytes], last: str) -> None:
    """Make the folder contain exactly these files.

    `last` marks the batch as complete, so it is removed before any other file changes.
    """
    correct = {name for name, content in files.items() if safe_paths.has_content(name, folder, content)}
    if len(correct) < len(files):
        correct.discard(last)
        with suppress(FileNotFoundError):
            safe_paths.remove_entry(last, folder)
    safe_paths.clear_folder(folder, keep=correct)
    for name, content in files.items():
        if name == last:
            os.fsync(folder)
        if name not in correct:
            safe_paths.create_file(name, folder, content)


def _check_not_replaced(opened: Sequence[int], path: Sequence[str]) -> None:
    """Raise when a folder on the path was swapped while the files were written."""
    with ExitStack() as fds:
        for name, parent, expected in zip(path, opened, opened[1:], strict=False):
            if not os.path.samestat(os.fstat(safe_paths.open_folder(name, parent, fds)), os.fstat(expected)):
                raise OSError(errno.ESTALE, "it was replaced while the files were written", name)


def _ignore_errors(action: Callable[..., None], *args: Any, **options: Any) -> None:
    """For the rollback after a failure: the failure is what gets reported."""
    with suppress(OSError):
        action(*args, **options)
