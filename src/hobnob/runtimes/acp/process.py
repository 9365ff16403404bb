"""A harness as a process: started with little of our environment, watched, and ended with all it started.

It is the leader of a session of its own, so that it and its children can be ended together. All of them carry
a mark in their environment, by which those that left are found, also by the next gateway.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import signal
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from hobnob.errors import HarnessFailed, unwrap_exception_group
from hobnob.processes.records import MARK, ProcessRecord
from hobnob.types import new_id

INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
LINE_BYTES = 16 * 1024 * 1024
TAIL_BYTES = 2_000
_LOGGED_BYTES = 64 * 1024
_CHUNK = 64 * 1024
_EOF_GRACE_S, _TERM_GRACE_S, _KILL_GRACE_S = 0.5, 1.0, 2.0
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HarnessCommand:
    """What to start. `secrets` are kept out of what is told of its failures; `heard` says what to pass on."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    secrets: Collection[str] = ()
    heard: Callable[[dict[str, Any]], bool] = lambda _: True


class _Watch(SubprocessStreamProtocol):
    """Tells when the process is gone, also while a child of it still holds its output open."""

    def __init__(self) -> None:
        super().__init__(limit=_CHUNK, loop=asyncio.get_running_loop())
        self.gone = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.gone.set()


class HarnessProcess:
    """A running harness. `reader` gives the lines of its output that are messages to us, and no others."""

    def __init__(self, launch: HarnessCommand, transport: asyncio.SubprocessTransport, watch: _Watch) -> None:
        assert watch.stdin is not None and watch.stdout is not None and watch.stderr is not None
        self._launch = launch
        self._transport = transport
        self._stdout, self._stderr = watch.stdout, watch.stderr
        self._tail = bytearray()
        self._ended = False
        self.pid = transport.get_pid()
        self.gone = watch.gone
        self.writer = watch.stdin
        self.reader = asyncio.StreamReader(limit=LINE_BYTES)

    def failure(self, what: str) -> HarnessFailed:
        """What happened, with the last the harness said about it."""
        code = self._transport.get_returncode()
        died = f" It ended with {_exit(code)}." if code is not None else ""
        tail = _COLOURS.sub("", bytes(self._tail).decode("utf-8", "replace")).strip()
        for secret in self._launch.secrets:
            tail = tail.replace(secret, "***")
        said = f" Its last words: {tail}" if tail else ""
        return HarnessFailed(f"The harness {self._launch.name!r} {what}.{died}{said}")

    async def read_stdout(self) -> None:
        """Pass its output on, line by line. A line without end is not kept."""
        line, too_long = bytearray(), False
        while chunk := await self._stdout.read(_CHUNK):
            *ended, rest = chunk.split(b"\n")
            for piece in ended:
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
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            return
        if isinstance(message, dict) and self._launch.heard(message):
            self.reader.feed_data(line + b"\n")

    async def read_stderr(self) -> None:
        """Read what it complains about, so that it never waits for us. The end of it is kept."""
        logged = 0
        while chunk := await self._stderr.read(_CHUNK):
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            if logged < _LOGGED_BYTES:
                logged += len(chunk)
                _log.debug("%s: %s", self._launch.name, chunk.decode("utf-8", "replace"))

    async def end(self) -> None:
        """End it and its children: by closing its input, then by asking, then by force."""
        if self._ended:
            return
        self._ended = True
        self.writer.close()
        if not await self._gone_within(_EOF_GRACE_S):
            self._signal(signal.SIGTERM)
            await self._gone_within(_TERM_GRACE_S)
        self._signal(signal.SIGKILL)  # those it leaves behind, too
        await self._gone_within(_KILL_GRACE_S)

    async def settle(self) -> None:
        """Wait a moment for a process that has closed its output to be gone, so that one can say how."""
        await self._gone_within(_EOF_GRACE_S)

    def close(self) -> None:
        """The end by force, without waiting for anything."""
        self._signal(signal.SIGKILL)
        self._transport.close()

    async def _gone_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        return self.gone.is_set()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


@asynccontextmanager
async def open_harness(launch: HarnessCommand, records: Path) -> AsyncIterator[HarnessProcess]:
    """A harness at work. On the way out, whatever happened, it is ended with all it started."""
    mark = new_id()
    record = ProcessRecord(records, mark)
    record.write(0)
    try:
        process = await _start(launch, mark)
        try:
            with unwrap_exception_group():
                async with asyncio.TaskGroup() as group:
                    reading = [
                        group.create_task(process.read_stdout(), name=f"output of {launch.name}"),
                        group.create_task(process.read_stderr(), name=f"errors of {launch.name}"),
                    ]
                    try:
                        yield process
                    finally:
                        await process.end()
                        for task in reading:  # somebody who left the family may hold the other end
                            task.cancel()
        finally:
            process.close()
    finally:
        # In a thread, for the loop's sake, and whatever cuts us short: it goes on there.
        await asyncio.shield(asyncio.to_thread(record.end))


async def _start(launch: HarnessCommand, mark: str) -> HarnessProcess:
    program = shutil.which(launch.command[0], path=launch.env.get("PATH", os.defpath))
    if program is None:
        raise HarnessFailed(
            f"The command of the harness {launch.name!r}, {launch.command[0]!r}, cannot be found.",
            fix=f"Install it, or mend acp.harnesses.{launch.name}.command.",
        )
    try:
        transport, watch = await asyncio.get_running_loop().subprocess_exec(
            _Watch,
            program,
            *launch.command[1:],
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={**launch.env, MARK: mark},
            cwd=launch.cwd,
            start_new_session=True,
        )
    except OSError as trouble:
        raise HarnessFailed(f"The harness {launch.name!r} cannot be started: {trouble}.") from trouble
    return HarnessProcess(launch, transport, watch)


def _exit(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
