"""Runs guest code in a Python process of its own, which can be ended at any time.

It is for work on bytes from outside whose time has no bound, such as patterns and HTML: on the event loop
such work stops the gateway, and a thread cannot be ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson

from hobnob.processes import Processes
from hobnob.sandbox import ProcessSpec, python
from hobnob.workspaces import guest
from hobnob.workspaces.guest import process
from hobnob.workspaces.guest.process import GuestError

Row = dict[str, Any]
MakeSpec = Callable[[ExitStack], ProcessSpec]

CODE = Path(guest.__file__).parent
_log = logging.getLogger(__name__)
# Makes the guest modules importable by their own names, without importing the rest of Hobnob.
_BOOTSTRAP = (
    "import importlib, sys, types; "
    "hobnob = sys.modules['hobnob'] = types.ModuleType('hobnob'); hobnob.__path__ = [sys.argv.pop(1)]; "
    "importlib.import_module('hobnob.workspaces.guest.' + sys.argv.pop(1)).main()"
)


class GuestProcesses:
    """Guest processes, of which at most `max_running` run at a time."""

    def __init__(self, processes: Processes, *, max_running: int) -> None:
        self._processes = processes
        self._slots = asyncio.Semaphore(max_running)

    async def run(self, make_spec: MakeSpec, job: Row, *, timeout_s: float) -> Row:
        """The result of a job. Raises what it raised, or TimeoutError: then its process was ended."""
        async with self._slots:
            with ExitStack() as fds:
                try:
                    spec = make_spec(fds)
                    stdout = await self._processes.answer(spec, orjson.dumps(job), timeout_s=timeout_s)
                    answer = orjson.loads(stdout)
                except TimeoutError:
                    raise
                except (OSError, orjson.JSONDecodeError) as error:
                    _log.error("a guest process failed, its job is refused: %r", error)
                    raise GuestError("The job failed; the gateway's log says why.") from None
        return process.result(answer)


def argv(module: str, *arguments: str, code: str | None = None) -> Sequence[str]:
    """The command that runs `main` of a guest module. `code` is the folder of Hobnob inside a sandbox."""
    return [*python.PROGRAM, "-c", _BOOTSTRAP, code or str(CODE.parent.parent), module, *arguments]


def host_spec(module: str, *arguments: str) -> MakeSpec:
    """A guest process outside a sandbox, with an empty environment."""
    spec = ProcessSpec(argv(module, *arguments), env={})
    return lambda _: spec
