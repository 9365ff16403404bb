"""Starts one OS process, watches for its exit, and ends it with everything it started.

A process leads its own process session. With a ProcessRecord it also carries a mark in its environment, which
its children inherit: so processes that left the group are found too, and the next gateway can end what a
killed gateway left running.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from contextlib import suppress
from typing import IO

from hobnob.errors import HobnobError
from hobnob.processes.records import MARK, ProcessRecord
from hobnob.records import Struct
from hobnob.sandbox import ProcessSpec
from hobnob.sandbox.spawn import spawn


class Grace(Struct, frozen=True):
    """Seconds a process gets to exit: after its stdin closes, after SIGTERM, after SIGKILL.

    0 skips that step. `kill_s` None waits until the process is gone.
    """

    eof_s: float = 0.0
    term_s: float = 0.0
    kill_s: float | None = None


class LaunchedProcess:
    """A process started by `launch`. `exited` is set at its exit, even while a child holds its pipes."""

    def __init__(self, popen: subprocess.Popen[bytes], record: ProcessRecord | None, sandboxed: bool) -> None:
        self._popen = popen
        self._record = record
        self._sandboxed = sandboxed
        self._transports: list[asyncio.BaseTransport] = []
        self._stdin: asyncio.StreamWriter | None = None
        self._ended = False
        self.pid = popen.pid
        self.exited = asyncio.Event()
        self._watch()

    @property
    def stdout(self) -> IO[bytes]:
        assert self._popen.stdout is not None
        return self._popen.stdout

    async def open_stdin(self) -> asyncio.StreamWriter:
        assert self._popen.stdin is not None
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), self._popen.stdin
        )
        self._transports.append(transport)
        self._stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        return self._stdin

    async def open_stdout(self, *, limit: int) -> asyncio.StreamReader:
        return await self._reader(self._popen.stdout, limit)

    async def open_stderr(self, *, limit: int) -> asyncio.StreamReader:
        return await self._reader(self._popen.stderr, limit)

    async def _reader(self, pipe: IO[bytes] | None, limit: int) -> asyncio.StreamReader:
        assert pipe is not None
        reader = asyncio.StreamReader(limit)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        self._transports.append(transport)
        return reader

    async def exited_within(self, seconds: float | None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.exited.wait()
        return self.exited.is_set()

    def reap(self) -> int | None:
        """The exit code, negative for a signal; None while it runs. Kills the rest of its group.

        The group is killed first: once the process is reaped, its number may belong to another.
        """
        if not self.exited.is_set():
            return None
        self._signal(signal.SIGKILL)
        return self._popen.wait()

    def kill(self) -> None:
        """Kill it and its group at once. `end` is still to be called."""
        self._signal(signal.SIGKILL)

    async def end(self, grace: Grace) -> None:
        """End it with everything it started. A second call does nothing."""
        if self._ended:
            return
        self._ended = True
        # A sandbox that has exited took everything inside with it: the search of /proc can be saved.
        nothing_left = self._sandboxed and self.exited.is_set()
        try:
            await self._terminate(grace)
        finally:  # also when we are cancelled
            self.reap()
            self._signal(signal.SIGKILL)
            for transport in self._transports:
                transport.close()
            if self._record is not None and nothing_left:
                self._record.remove()
            elif self._record is not None:
                # In a thread, since it blocks. Shielded, so that it is completed whatever cancels us.
                await asyncio.shield(asyncio.to_thread(self._record.end))

    async def _terminate(self, grace: Grace) -> None:
        if self._stdin is not None:
            self._stdin.close()
        if grace.eof_s and await self.exited_within(grace.eof_s):
            return
        if grace.term_s and not self.exited.is_set():
            self._signal(signal.SIGTERM)
            await self.exited_within(grace.term_s)
        if not self.exited.is_set():
            self._signal(signal.SIGKILL)
            await self.exited_within(grace.kill_s)

    def _signal(self, number: signal.Signals) -> None:
        if self._popen.returncode is None:  # not reaped, so the number is still its own
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if not hasattr(os, "pidfd_open"):
            waiting = loop.run_in_executor(None, self._popen.wait)
            waiting.add_done_callback(lambda _: self.exited.set())
            return
        pidfd = os.pidfd_open(self.pid)

        def on_exit() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self.exited.set()
            if self._ended:
                self.reap()

        loop.add_reader(pidfd, on_exit)


def launch(
    spec: ProcessSpec,
    *,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    stderr: IO[bytes] | int = subprocess.DEVNULL,
    record: ProcessRecord | None = None,
    niceness: int = 0,
) -> LaunchedProcess:
    """Start a process. Raises OSError or HobnobError. Blocks the event loop for about a millisecond.

    The loop's own subprocess support is not used: it forks the whole gateway.
    """
    popen: subprocess.Popen[bytes] | None = None
    try:
        if record is not None:
            record.write(0)  # before the start, so that a crash in between leaves no unknown process
        env = {**spec.env, **({MARK: record.mark} if record is not None else {})}
        popen = spawn(spec, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
        process = LaunchedProcess(popen, record, spec.sandboxed)
    except BaseException:
        if popen is not None:  # no descriptor left to watch it with
            with popen:  # closes its pipes and reaps it
                os.killpg(popen.pid, signal.SIGKILL)
        if record is not None:
            record.remove()
        raise
    if record is not None:
        with suppress(HobnobError, OSError):  # the disk is full: the process is found by its mark too
            record.write(popen.pid)
    if niceness:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, popen.pid, niceness)
    return process
