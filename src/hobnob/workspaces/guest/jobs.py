"""Runs one job in a workspace: in this process, or in a guest process."""

from __future__ import annotations

import binascii
import sys
from contextlib import ExitStack
from typing import Any

from hobnob.workspaces.guest import attachment_batches, files, process, safe_paths, search
from hobnob.workspaces.guest.process import GuestError

Row = dict[str, Any]


def run(workspace: str, job: Row) -> Row:
    """The result of a job, `{"action": …, "path": [names…], …}`. Raises GuestError or OSError."""
    with ExitStack() as fds:
        root = safe_paths.open_root(workspace, fds)
        match job:
            case {"action": "read", "path": path, **options}:
                return files.read(root, path, **options)
            case {"action": "write", "path": path, **options}:
                return files.write(root, path, **options)
            case {"action": "edit", "path": path, **options}:
                return files.edit(root, path, **options)
            case {"action": "ls", "path": path, **options}:
                return files.ls(root, path, **options)
            case {"action": "grep", "path": path, **options}:
                return search.grep(root, path, **options)
            case {"action": "write_batch", "path": path, "files": encoded, "last": last}:
                contents = {name: binascii.a2b_base64(text) for name, text in encoded.items()}
                attachment_batches.write(root, path, contents, last=last)
                return {}
            case {"action": "remove_batch", "path": path}:
                attachment_batches.remove(root, path)
                return {}
    raise GuestError(f"There is no such job: {job.get('action')!r}.")


def main() -> None:
    """The program of a job's own process; its argument is the workspace."""
    process.serve(lambda job: run(sys.argv[1], job))
