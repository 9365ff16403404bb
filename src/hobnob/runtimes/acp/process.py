"""The process of a harness: its streams, its stderr tail, and its end with everything it started."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import orjson

from hobnob import json_input
from hobnob.errors import HarnessFailed, unwrap_exception_group
from hobnob.processes.launcher import Grace, LaunchedProcess, launch
from hobnob.processes.records import ProcessRecord
from hobnob.records import Struct
from hobnob.sandbox import ProcessSpec

INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
LINE_BYTES = 16 * 1024 * 1024
TAIL_BYTES = 2_000
_LOGGED_BYTES = 64 * 1024
_CHUNK = 64 * 1024
_GRACE = Grace(eof_s=0.5, term_s=1.0, kill_s=2.0)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_log = logging.getLogger(__name__)


class HarnessCommand(Struct, frozen=True):
    """What to start. `secrets` are masked in failure messages.

    `adapt` returns a message of the harness as it is passed on, or None to drop it.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    secrets: Collection[str] = ()
    adapt: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda message: message


class HarnessProcess:
    """A running harness. `reader` has the JSON lines of its stdout, adapted; `gone` is set at its exit."""

    def __init__(
        self,
        command: HarnessCommand,
        process: LaunchedProcess,
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader,
    ) -> None:
        self._command = command
        self._process = process
        self._stdout, self._stderr = stdout, stderr
        self._stderr_tail = bytearray()
        self.gone = process.exited
        self.writer = stdin
        self.reader = asyncio.StreamReader(limit=LINE_BYTES)

    def failure(self, what: str) -> HarnessFailed:
        """An error with the exit code and the stderr tail of the harness."""
        code = self._process.reap()
        died = f" It ended with {_exit_status(code)}." if code is not None else ""
        tail = _COLOURS.sub("", bytes(self._stderr_tail).decode("utf-8", "replace")).strip()
        for secret in self._command.secrets:
            tail = tail.replace(secret, "***")
        stderr = f" Its stderr tail: {tail}" if tail else ""
        return HarnessFailed(f"The harness {self._command.name!r} {what}.{died}{stderr}")

    async def read_stdout(self) -> None:
        """Pass its messages on to `reader`. A line longer than LINE_BYTES is dropped."""
        line, too_long = bytearray(), False
        while chunk := await self._stdout.read(_CHUNK):
            *complete, rest = chunk.split(b"\n")
            for piece in complete:
                self._pass_on(bytes(line) + piece if not too_long else b"")
                line.clear()
                too_long = False
            line += rest
            if len(line) > LINE_BYTES:
                line.clear()
                too_long = True
            await asyncio.sleep(0)
        self.reader.feed_eof()

    def _pass_on(self, line: bytes) -> None:
        try:
            message = json_input.loads(line)
        except json_input.TooComplex as error:
            _log.warning("a message of the harness %s was dropped: %s", self._command.name, error)
            return
        except ValueError:
            return
        adapted = self._command.adapt(message) if isinstance(message, dict) else None
        if adapted is not None:
            self.reader.feed_data((line if adapted is message else orjson.dumps(adapted)) + b"\n")

    async def read_stderr(self) -> None:
        """Read its stderr, so that it never blocks on a full pipe, and keep the tail."""
        logged = 0
        while chunk := await self._stderr.read(_CHUNK):
            self._stderr_tail = (self._stderr_tail + chunk)[-TAIL_BYTES:]
            if logged < _LOGGED_BYTES:
                logged += len(chunk)
                _log.debug("%s: %s", self._command.name, chunk.decode("utf-8", "replace"))

    def kill(self) -> None:
        """Kill it at once: another gateway is about to run its turn."""
        self._process.kill()

    async def end(self) -> None:
        """End it with everything it started: close its stdin, then SIGTERM, then SIGKILL."""
        await self._process.end(_GRACE)

    async def settle(self) -> None:
        """Give a process that closed its stdout a moment to exit, so that `failure` has an exit code."""
        await self._process.exited_within(_GRACE.eof_s)


@asynccontextmanager
async def open_harness(command: HarnessCommand, records: Path) -> AsyncIterator[HarnessProcess]:
    """A running harness. On exit, also by an error, it is ended with everything it started."""
    process = _launch(command, records)
    try:
        harness = HarnessProcess(
            command,
            process,
            await process.open_stdin(),
            await process.open_stdout(limit=_CHUNK),
            await process.open_stderr(limit=_CHUNK),
        )
        with unwrap_exception_group():
            async with asyncio.TaskGroup() as group:
                reading = [
                    group.create_task(harness.read_stdout(), name=f"stdout of {command.name}"),
                    group.create_task(harness.read_stderr(), name=f"stderr of {command.name}"),
                ]
                try:
                    yield harness
                finally:
                    await harness.end()
                    for task in reading:  # a process that escaped may still hold the other end
                        task.cancel()
    finally:
        await process.end(_GRACE)


def _launch(command: HarnessCommand, records: Path) -> LaunchedProcess:
    program = shutil.which(command.command[0], path=command.env.get("PATH", os.defpath))
    if program is None:
        raise HarnessFailed(
            f"The command of the harness {command.name!r}, {command.command[0]!r}, cannot be found.",
            fix=f"Install it, or correct acp.harnesses.{command.name}.command.",
        )
    spec = ProcessSpec([program, *command.command[1:]], command.env, cwd=command.cwd)
    try:
        return launch(spec, stdin=PIPE, stdout=PIPE, stderr=PIPE, record=ProcessRecord(records))
    except OSError as error:
        raise HarnessFailed(f"The harness {command.name!r} cannot be started: {error}.") from error


def _exit_status(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
