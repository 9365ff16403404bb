"""The program of a guest process: it reads one job from stdin and writes one answer to stdout, as JSON."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]

_MEMORY_BYTES = 512 * 1024 * 1024
_CPU_S = 30


class GuestError(Exception):
    """A job was refused: the reason for the caller, and what may help."""

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(message, fix)
        self.message = message
        self.fix = fix


def serve(run: Callable[[Row], Row]) -> None:
    """Run the job of this process, with limits on its memory and time."""
    _lower_limit(resource.RLIMIT_DATA, _MEMORY_BYTES)
    _lower_limit(resource.RLIMIT_CPU, _CPU_S)  # when the gateway is killed, nothing else ends this process
    answer: Row
    try:
        answer = {"result": run(json.load(sys.stdin.buffer))}
    except GuestError as error:
        answer = {"error": error.message, "fix": error.fix}
    except MemoryError:
        answer = {"error": "It needs too much memory.", "fix": None}
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else None
        answer = {"errno": error.errno, "strerror": error.strerror, "filename": name and as_text(name)}
    json.dump(answer, sys.stdout)


def result(answer: Row) -> Row:
    """Decode the answer of `serve`: returns or raises what the job did."""
    match answer:
        case {"result": found}:
            row: Row = found
            return row
        case {"error": message, "fix": fix}:
            raise GuestError(message, fix)
        case {"errno": number, "strerror": text, "filename": name}:
            raise OSError(number, text, name)
    raise GuestError("The job failed without an answer.")


def as_text(name: str) -> str:
    """A file name that may contain undecodable bytes, as valid text."""
    return name.encode("utf-8", "replace").decode()


def _lower_limit(kind: int, maximum: int) -> None:
    """Set a resource limit, unless it is lower already."""
    _, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or hard > maximum:
        resource.setrlimit(kind, (maximum, maximum))
