"""One piece of work in a workspace: done here, or told to a process and answered by it, all in JSON."""

from __future__ import annotations

import binascii
import json
import resource
import sys
from contextlib import ExitStack
from typing import Any

from hobnob.workspaces.guest import batches, files, folders, search
from hobnob.workspaces.guest.files import GuestError

Row = dict[str, Any]

_MEMORY_BYTES = 512 * 1024 * 1024
_CPU_S = 30


def do(workspace: str, job: Row) -> Row:
    """The answer to a job, `{"do": …, "way": […], …}`. Raises Trouble or OSError."""
    with ExitStack() as fds:
        root = folders.start(workspace, fds)
        match job:
            case {"do": "read", "way": way, **how}:
                return files.read(root, way, **how)
            case {"do": "write", "way": way, **how}:
                return files.write(root, way, **how)
            case {"do": "edit", "way": way, **how}:
                return files.edit(root, way, **how)
            case {"do": "ls", "way": way, **how}:
                return files.ls(root, way, **how)
            case {"do": "grep", "way": way, **how}:
                return search.grep(root, way, **how)
            case {"do": "place", "way": way, "files": given, "last": last}:
                contents = {name: binascii.a2b_base64(text) for name, text in given.items()}
                batches.place(root, way, contents, last=last)
                return {}
            case {"do": "remove", "way": way}:
                batches.remove(root, way)
                return {}
    raise GuestError(f"There is no such work: {job.get('do')!r}.")


def main() -> None:
    """A process of its own: the job comes on its input, what came of it goes to its output."""
    _limit(resource.RLIMIT_DATA, _MEMORY_BYTES)
    _limit(resource.RLIMIT_CPU, _CPU_S)  # nobody is left to end it when the gateway is killed
    answer: Row
    try:
        answer = {"done": do(sys.argv[1], json.load(sys.stdin))}
    except GuestError as trouble:
        answer = {"trouble": trouble.message, "fix": trouble.fix}
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else None
        answer = {"errno": error.errno, "strerror": error.strerror, "filename": name and files.as_text(name)}
    json.dump(answer, sys.stdout)


def outcome(answer: Row) -> Row:
    """What `main` said, as `do` would have returned or raised it."""
    match answer:
        case {"done": done}:
            found: Row = done
            return found
        case {"trouble": why, "fix": fix}:
            raise GuestError(why, fix)
        case {"errno": number, "strerror": text, "filename": name}:
            raise OSError(number, text, name)
    raise GuestError("The work in the workspace broke down.")


def _limit(what: int, most: int) -> None:
    """As low as this, or as it is."""
    _, hard = resource.getrlimit(what)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(what, (most, most))
