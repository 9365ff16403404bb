"""The programs of one gateway: start them, read their output, enforce their limits, end them."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from hobnob.errors import HobnobError, unwrap_exception_group
from hobnob.processes.launcher import Grace, LaunchedProcess, launch
from hobnob.processes.output import Output, reading
from hobnob.processes.records import ProcessRecord, records
from hobnob.processes.usage import memory_kb, sandbox_pids
from hobnob.sandbox import ProcessSpec
from hobnob.types import new_id, now_ms

ANSWER_BYTES = 4_000_000  # read of a program's answer
_KEPT = 20  # ended programs of a session that can still be polled
_KEPT_IN_ALL = 200  # of all sessions: each keeps up to 64 KB of output
_HOST_GRACE = Grace(term_s=1.0)
_KILL_AT_ONCE = Grace()  # for a sandbox: everything inside dies with it
_START_INTERVAL_S = 0.005
_NICENESS = 5  # turns have priority over the programs they started
_CHECK_INTERVAL_S = 0.25
_log = logging.getLogger(__name__)

Why = Literal["timeout", "stopped", "too many processes", "too much memory"]


@dataclass(slots=True)
class Program:
    """One program, running or ended. `why` is the reason it was ended, None when it exited by itself."""

    session_key: str
    turn_id: str
    command: str
    timeout_s: float
    process_id: str = field(default_factory=lambda: new_id()[-12:])
    spec: ProcessSpec = field(default_factory=lambda: ProcessSpec((), {}))
    pid: int = 0
    output: Output = field(default_factory=Output)
    reported_bytes: int = 0
    dropped: bool = False
    exit_code: int | None = None
    why: Why | None = None
    started_at_ms: int = field(default_factory=now_ms)
    ended_at_ms: int | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def running(self) -> bool:
        return self.ended_at_ms is None

    def stop(self, why: Why = "stopped") -> None:
        """Request its end; `ended` is set when it is gone."""
        self.why = self.why or why
        self.stopping.set()


class Processes:
    """The programs of one gateway. Get one from `open_processes`."""

    def __init__(self, folder: Path, group: asyncio.TaskGroup) -> None:
        self.folder = folder
        self._group = group
        self._programs: dict[str, Program] = {}
        self._start_slot = asyncio.Lock()
        self._limit_checks: asyncio.Task[None] | None = None
        self._closed = False
        self._recovering = group.create_task(self._recover(records(folder)), name="end leftovers")

    async def recovered(self) -> None:
        """Wait until the processes that an earlier gateway left running are ended."""
        await asyncio.shield(self._recovering)

    async def start(self, spec: ProcessSpec, program: Program) -> None:
        """Start a program and supervise it in the background until it ends. Raises OSError or HobnobError."""
        await self._acquire_start()
        program.spec = spec
        process = launch(
            spec,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            record=ProcessRecord(self.folder),
            niceness=_NICENESS,
        )
        program.pid = process.pid
        self._forget_old(program.session_key)
        self._programs[program.process_id] = program
        self._group.create_task(self._supervise(process, program), name=f"process {process.pid}")
        if spec.sandboxed and (self._limit_checks is None or self._limit_checks.done()):
            self._limit_checks = self._group.create_task(self._check_limits(), name="check process limits")

    async def answer(self, spec: ProcessSpec, request: bytes, *, timeout_s: float) -> bytes:
        """Run a program with `request` on its stdin and return its stdout. Raises TimeoutError or OSError.

        Both are files, not pipes: nothing has to read along, and file size limits apply to them. When the
        program fails, the result is empty and its stderr is logged.
        """
        await self._acquire_start()
        with _memory_file() as stdin, _memory_file() as stdout, _memory_file() as stderr:
            stdin.write(request)
            stdin.seek(0)
            process = launch(spec, stdin=stdin, stdout=stdout, stderr=stderr, niceness=_NICENESS)
            try:
                async with asyncio.timeout(timeout_s):
                    await process.exited.wait()
            finally:
                await process.end(_KILL_AT_ONCE)
            if exit_code := process.reap():
                stderr.seek(0)
                text = stderr.read(2000).decode("utf-8", "replace").strip()
                _log.error("%s failed with exit code %d: %s", spec.argv[0], exit_code, text)
                return b""
            stdout.seek(0)
            return stdout.read(ANSWER_BYTES)

    async def _acquire_start(self) -> None:
        """Starting a process blocks the event loop, so starts are spaced out."""
        await self._start_slot.acquire()
        asyncio.get_running_loop().call_later(_START_INTERVAL_S, self._start_slot.release)
        if self._closed:
            raise HobnobError("The gateway is stopping: nothing new is started.")

    def of(self, session_key: str) -> list[Program]:
        """The programs of a session, oldest first."""
        return [p for p in self._programs.values() if p.session_key == session_key]

    def forget(self, program: Program) -> None:
        """Drop an ended program from the list. Does nothing while it runs."""
        if not program.running:
            self._programs.pop(program.process_id, None)

    def _forget_old(self, session_key: str) -> None:
        """Drop the oldest ended programs beyond the limits, of a session and of all together."""
        ended = [program for program in self._programs.values() if not program.running]
        of_session = [program for program in ended if program.session_key == session_key]
        for old in [*of_session[:-_KEPT], *ended[:-_KEPT_IN_ALL]]:
            self.forget(old)

    def drop(self, session_key: str) -> None:
        """End the programs of a session and forget them."""
        for program in self.of(session_key):
            program.stop()
            program.dropped = True
            self.forget(program)

    def stop_all(self) -> None:
        """Request the end of all programs."""
        for program in self._programs.values():
            if program.running:
                program.stop()

    async def end_all(self, matches: Callable[[Program], bool] = lambda _: True) -> None:
        """End programs, and wait until they are gone."""
        ending = [p for p in self._programs.values() if p.running and matches(p)]
        for program in ending:
            program.stop()
        for program in ending:
            await program.ended.wait()

    async def close(self) -> None:
        self._closed = True
        await self.end_all()

    async def _recover(self, left: list[ProcessRecord]) -> None:
        for record in left:
            ended = await asyncio.to_thread(record.end)
            if ended:
                _log.warning("ended %d processes that an earlier gateway left running", ended)

    async def _supervise(self, process: LaunchedProcess, program: Program) -> None:
        """Read a program's output until it exits or has to be ended; leave nothing of it running."""
        with reading(process.stdout, program.output) as read_rest:
            waits = [asyncio.ensure_future(e.wait()) for e in (process.exited, program.stopping)]
            try:
                await asyncio.wait(waits, timeout=program.timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if not process.exited.is_set():
                    program.why = program.why or "timeout"
            finally:
                for wait in waits:
                    wait.cancel()
                try:
                    await process.end(_KILL_AT_ONCE if program.spec.sandboxed else _HOST_GRACE)
                finally:
                    read_rest()
                    program.exit_code = process.reap()
                    program.ended_at_ms = now_ms()
                    program.ended.set()
                    if program.dropped:
                        self.forget(program)

    async def _check_limits(self) -> None:
        """End sandboxed programs over a limit that the kernel does not enforce for all their processes."""
        while sandboxed := [p for p in self._programs.values() if p.running and p.spec.sandboxed]:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            for program, why in await asyncio.to_thread(_over_limit, sandboxed):
                if program.running:
                    program.stop(why)


@asynccontextmanager
async def open_processes(folder: Path) -> AsyncIterator[Processes]:
    """A `Processes` whose programs are ended on exit. Leftovers of an earlier gateway are ended meanwhile."""
    with unwrap_exception_group():
        async with asyncio.TaskGroup() as group:
            processes = Processes(folder, group)
            try:
                yield processes
            finally:
                await processes.close()


def _over_limit(programs: list[Program]) -> list[tuple[Program, Why]]:
    """The programs with more processes or memory than allowed. Blocks."""
    inside = sandbox_pids([program.pid for program in programs])
    found: list[tuple[Program, Why]] = []
    for program in programs:
        pids, spec = inside.get(program.pid, []), program.spec
        if spec.processes is not None and len(pids) > spec.processes:
            found.append((program, "too many processes"))
        elif spec.memory_mb is not None and memory_kb(pids, spec.memory_mb * 1024) > spec.memory_mb * 1024:
            found.append((program, "too much memory"))
    return found


def _memory_file() -> IO[bytes]:
    """An unnamed file, in memory where the system supports it."""
    if not hasattr(os, "memfd_create"):
        return tempfile.TemporaryFile()
    return os.fdopen(os.memfd_create("hobnob"), "w+b")
