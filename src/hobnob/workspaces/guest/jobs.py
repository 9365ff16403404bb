"""Runs one job in a workspace: in this process, or in another that gets the job and answers as JSON."""

from __future__ import annotations

import binascii
import json
import resource
import sys
from contextlib import ExitStack
from typing import Any

from hobnob.workspaces.guest import attachment_batches, files, safe_paths, search
from hobnob.workspaces.guest.files import GuestError

Row = dict[str, Any]

_MEMORY_BYTES = 512 * 1024 * 1024
_CPU_S = 30


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
    """The program of a job's own process: reads the job from stdin and writes the answer to stdout."""
    _lower_limit(resource.RLIMIT_DATA, _MEMORY_BYTES)
    _lower_limit(resource.RLIMIT_CPU, _CPU_S)  # when the gateway is killed, nothing else ends this process
    answer: Row
    try:
        answer = {"result": run(sys.argv[1], json.load(sys.stdin))}
    except GuestError as error:
        answer = {"error": error.message, "fix": error.fix}
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else None
        answer = {"errno": error.errno, "strerror": error.strerror, "filename": name and files.as_text(name)}
    json.dump(answer, sys.stdout)


def result(answer: Row) -> Row:
    """Decode the answer of `main`: returns or raises what `run` did."""
    match answer:
        case {"result": found}:
            row: Row = found
            return row
        case {"error": message, "fix": fix}:
            raise GuestError(message, fix)
        case {"errno": number, "strerror": text, "filename": name}:
            raise OSError(number, text, name)
    raise GuestError("The job in the workspace failed without an answer.")


def _lower_limit(kind: int, maximum: int) -> None:
    """Set a resource limit, unless it is lower already."""
    _, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or hard > maximum:
        resource.setrlimit(kind, (maximum, maximum))
