"""Running other programs, and ending them with all they started.

Each runs in a process group of its own and carries a mark in its environment, which what it starts inherits:
so also a process that left the group is found. A file in the state directory says what runs, so that the next
start can end what a killed gateway left behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from hobnob.errors import HobnobError, unwrap_exception_group
from hobnob.processes.output import Output, reading
from hobnob.processes.records import MARK, ProcessRecord, kill_marked, memory_kb, per_sandbox, records
from hobnob.sandbox import ProcessSpec
from hobnob.types import new_id, now_ms

ANSWER_BYTES = 4_000_000  # of a program that answers
_KEPT = 20  # ended programs of a session that can still be asked about
_GRACE_S = 1.0  # between asking a program to end and ending it
_PACE_S = 0.005  # from one start to the next
_NICENESS = 5  # turns go before what they started
_COUNT_EVERY_S = 0.25
_log = logging.getLogger(__name__)

Why = Literal["timeout", "stopped", "too many processes", "too much memory"]
_File = IO[bytes] | int


@dataclass(slots=True)
class Program:
    """One program, running or ended. `why` says who ended it, when it did not end by itself."""

    session_key: str
    turn_id: str
    command: str
    timeout_s: float
    process_id: str = field(default_factory=lambda: new_id()[-12:])
    mark: str = field(default_factory=new_id)
    boxed: bool = False
    launch: ProcessSpec = field(default_factory=lambda: ProcessSpec((), {}))
    pid: int = 0
    output: Output = field(default_factory=Output)
    told: int = 0
    dropped: bool = False
    exit_code: int | None = None
    why: Why | None = None
    started_at_ms: int = field(default_factory=now_ms)
    ended_at_ms: int | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    unwanted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def running(self) -> bool:
        return self.ended_at_ms is None

    def stop(self, why: Why = "stopped") -> None:
        """Have it ended; `ended` tells when that is done."""
        self.why = self.why or why
        self.unwanted.set()


class Processes:
    """The programs of one gateway. Get one from `open_processes`."""

    def __init__(self, folder: Path, group: asyncio.TaskGroup) -> None:
        self.folder = folder
        self._group = group
        self._programs: dict[str, Program] = {}
        self._starting = asyncio.Lock()
        self._counting: asyncio.Task[None] | None = None
        self._closed = False
        self._recovering = group.create_task(self._recover(records(folder)), name="end leftovers")

    async def recovered(self) -> None:
        """Wait until what an earlier gateway left running is ended."""
        await asyncio.shield(self._recovering)

    async def start(self, launch: ProcessSpec, program: Program, *, boxed: bool) -> None:
        """Start a program. It is attended to until it ends.

        To start one stops everything for a moment, so between two of them the rest gets its turn.
        """
        await self._may_start()
        self._start(launch, program, boxed=boxed)

    async def answer(self, launch: ProcessSpec, told: bytes, *, timeout_s: float) -> bytes:
        """What a program says that is told something on its input. It ends with this. Raises TimeoutError.

        Both are files, not pipes: nobody has to read along, and what it may write is limited as for any file.
        A program that fails has said nothing, and the log has what it complained of.
        """
        await self._may_start()
        with _memory() as given, _memory() as said, _memory() as complaint:
            given.write(told)
            given.seek(0)
            process = _popen(launch, {}, stdin=given, stdout=said, stderr=complaint)
            exited = asyncio.ensure_future(_exited(process))
            try:
                async with asyncio.timeout(timeout_s):
                    await asyncio.shield(exited)
            finally:
                if process.returncode is None:  # its number is its own until then
                    os.killpg(process.pid, signal.SIGKILL)
                    await asyncio.to_thread(process.wait)
                exited.cancel()
            if process.returncode:
                complaint.seek(0)
                why = complaint.read(2000).decode("utf-8", "replace").strip()
                _log.error("%s failed with exit code %d: %s", launch.argv[0], process.returncode, why)
                return b""
            said.seek(0)
            return said.read(ANSWER_BYTES)

    async def _may_start(self) -> None:
        await self._starting.acquire()
        asyncio.get_running_loop().call_later(_PACE_S, self._starting.release)
        if self._closed:
            raise HobnobError("The gateway is stopping: nothing new is started.")

    def _start(self, launch: ProcessSpec, program: Program, *, boxed: bool) -> None:
        program.boxed, program.launch = boxed, launch
        record = ProcessRecord(self.folder, program.mark)
        read, write = os.pipe()
        try:
            record.write(0)  # before it starts, so that no moment of it is unknown
            mark = {MARK: program.mark}
            process = _popen(launch, mark, stdin=subprocess.DEVNULL, stdout=write, stderr=write)
        except BaseException:
            os.close(read)
            record.remove()
            raise
        finally:
            os.close(write)
        program.pid = process.pid
        with suppress(HobnobError, OSError):  # a full disk: it is found by its mark too
            record.write(process.pid)
        for old in [p for p in self.of(program.session_key) if not p.running][:-_KEPT]:
            self.forget(old)
        self._programs[program.process_id] = program
        self._group.create_task(self._attend(process, read, program, record), name=f"process {process.pid}")
        if boxed and (self._counting is None or self._counting.done()):
            self._counting = self._group.create_task(self._count(), name="count processes")

    def of(self, session_key: str) -> list[Program]:
        """The programs of a session, the oldest first."""
        return [p for p in self._programs.values() if p.session_key == session_key]

    def forget(self, program: Program) -> None:
        """Nobody needs to know any more how it ended."""
        if not program.running:
            self._programs.pop(program.process_id, None)

    def drop(self, session_key: str) -> None:
        """End the programs of a session, and forget them: nobody will ask how they ended."""
        for program in self.of(session_key):
            program.stop()
            program.dropped = True
            self.forget(program)

    async def end_all(self, wanted: Callable[[Program], bool] = lambda _: True) -> None:
        """End programs, and wait until they are gone."""
        ending = [p for p in self._programs.values() if p.running and wanted(p)]
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

    async def _attend(
        self, process: subprocess.Popen[bytes], read: int, program: Program, record: ProcessRecord
    ) -> None:
        """Take in what a program says until it ends by itself or has to, and see that nothing is left."""
        with reading(read, program.output) as rest:
            exited = asyncio.ensure_future(_exited(process))
            stopped = asyncio.ensure_future(program.unwanted.wait())
            try:
                await asyncio.wait(
                    [exited, stopped], timeout=program.timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not exited.done():
                    program.why = program.why or "timeout"
                    await _end(process, exited, boxed=program.boxed)
                    await asyncio.to_thread(kill_marked, program.mark)
                elif not program.boxed:  # a sandbox ends with its first process, and all in it
                    await asyncio.to_thread(kill_marked, program.mark)
            finally:
                if process.returncode is None:  # we are being cancelled ourselves
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
                stopped.cancel()
                exited.cancel()
                rest()
                program.exit_code = process.returncode
                program.ended_at_ms = now_ms()
                record.remove()
                program.ended.set()
                if program.dropped:
                    self.forget(program)

    async def _count(self) -> None:
        """End programs that have too much, where the kernel would let them go on."""
        while limited := [p for p in self._programs.values() if p.running and p.boxed]:
            await asyncio.sleep(_COUNT_EVERY_S)
            for program, why in await asyncio.to_thread(_having_too_much, limited):
                if program.running:
                    program.stop(why)


@asynccontextmanager
async def open_processes(folder: Path) -> AsyncIterator[Processes]:
    """Programs that end with this context at the latest. What an earlier one left is ended meanwhile."""
    with unwrap_exception_group():
        async with asyncio.TaskGroup() as group:
            processes = Processes(folder, group)
            try:
                yield processes
            finally:
                await processes.close()


def _having_too_much(programs: list[Program]) -> list[tuple[Program, Why]]:
    """Which of these have more processes or memory than they may. Blocks."""
    inside = per_sandbox([program.pid for program in programs])
    found: list[tuple[Program, Why]] = []
    for program in programs:
        pids, most = inside.get(program.pid, []), program.launch
        if most.processes is not None and len(pids) > most.processes:
            found.append((program, "too many processes"))
        elif most.memory_mb is not None and memory_kb(pids, most.memory_mb * 1024) > most.memory_mb * 1024:
            found.append((program, "too much memory"))
    return found


def _memory() -> IO[bytes]:
    """A file without a name, in memory where that is possible."""
    if not hasattr(os, "memfd_create"):
        return tempfile.TemporaryFile()
    return os.fdopen(os.memfd_create("hobnob"), "w+b")


def _popen(
    launch: ProcessSpec, env: dict[str, str], *, stdin: _File, stdout: _File, stderr: _File
) -> subprocess.Popen[bytes]:
    """Start a program. In this thread, since a sandbox ends with the one that started it.

    Not by way of the loop: that forks all of us, and this takes a millisecond.
    """
    process = subprocess.Popen(  # noqa: S603 - to run programs is what this is for
        launch.argv,
        env={**launch.env, **env},
        cwd=launch.cwd,
        pass_fds=tuple(launch.fds),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
    return process


async def _exited(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process, and take note of its exit code."""
    if not hasattr(os, "pidfd_open"):
        await asyncio.to_thread(process.wait)
        return
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    held = os.pidfd_open(process.pid)
    loop.add_reader(held, over.set)
    try:
        await over.wait()
        process.wait()
    finally:
        loop.remove_reader(held)
        os.close(held)


async def _end(process: subprocess.Popen[bytes], exited: asyncio.Future[None], *, boxed: bool) -> None:
    """Ask the group to end, then make it. A sandbox is ended at once: with it goes all that is inside."""
    for number in (signal.SIGKILL,) if boxed else (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            if process.returncode is None:  # its number is its own until then
                os.killpg(process.pid, number)
        await asyncio.wait([exited], timeout=_GRACE_S)
        if exited.done():
            return
    await exited
