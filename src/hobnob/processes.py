"""Running other programs, and ending them with all they started.

Each runs in a process group of its own and carries a mark in its environment, which what it starts inherits:
so also a process that left the group is found. A file in the state directory says what runs, so that the next
start can end what a killed gateway left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import orjson

from hobnob import statedir
from hobnob.errors import HobnobError, unwrapped
from hobnob.sandbox import Launch
from hobnob.types import new_id, now_ms

MARK = "HOBNOB_PROCESS"
HEAD_BYTES, TAIL_BYTES = 16_000, 48_000

_KEPT = 20  # ended programs of a session that can still be asked about
_READ_BYTES = 65_536
_FLOOD_BYTES = 1_000_000  # after which output is taken in at a measured pace
_FLOOD_PAUSE_S = 0.01
_GRACE_S = 1.0  # between asking a program to end and ending it
_ROUNDS = 50  # of looking for what is left of a program
_COUNT_EVERY_S = 0.25
_PROC = Path("/proc")
_log = logging.getLogger(__name__)

Why = Literal["timeout", "stopped", "too many processes"]


class Output:
    """The beginning and the end of what a program said; what is in between is counted."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._in_tail = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        if rest := data[room:] if room > 0 else data:
            self._tail.append(rest)
            self._in_tail += len(rest)
            while self._in_tail - len(self._tail[0]) >= TAIL_BYTES:
                self._in_tail -= len(self._tail.popleft())

    def text(self, since: int = 0) -> str:
        """What was said after the first `since` bytes, as far as it is kept."""
        tail = b"".join(self._tail)[-TAIL_BYTES:]
        tail_at = self.total - len(tail)
        head = bytes(self._head[since:])
        tail = tail[max(0, since - tail_at) :]
        lost = max(0, tail_at - max(since, len(self._head)))
        said = head.decode("utf-8", "replace")
        if lost:
            said += f"\n[… {lost:,} bytes left out …]\n"
        return said + tail.decode("utf-8", "replace")


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
    most: int | None = None
    pid: int = 0
    output: Output = field(default_factory=Output)
    told: int = 0
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
        self._folder = folder
        self._group = group
        self._programs: dict[str, Program] = {}
        self._counting: asyncio.Task[None] | None = None
        self._closed = False

    async def start(
        self, launch: Launch, fds: ExitStack, program: Program, *, boxed: bool
    ) -> asyncio.subprocess.Process:
        """Start a program. It is attended to until it ends. `fds` are closed once it has started."""
        if self._closed:
            raise HobnobError("The gateway is stopping: nothing new is started.")
        program.boxed, program.most = boxed, launch.processes
        record = _Record(self._folder, program.mark)
        record.write(0)  # before it starts, so that no moment of it is unknown
        read, write = os.pipe2(os.O_CLOEXEC)
        try:
            with fds:
                process = await asyncio.create_subprocess_exec(
                    *launch.argv,
                    env={**launch.env, MARK: program.mark},
                    cwd=launch.cwd,
                    pass_fds=tuple(launch.fds),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=write,
                    stderr=write,
                    start_new_session=True,
                )
        except BaseException:
            # A cancellation can reach us when the program has been started: then it goes by its mark.
            os.close(read)
            await asyncio.shield(asyncio.to_thread(_kill_marked, program.mark))
            record.remove()
            raise
        finally:
            os.close(write)
        program.pid = process.pid
        for old in [p for p in self.of(program.session_key) if not p.running][:-_KEPT]:
            self.forget(old)
        record.write(process.pid)
        self._programs[program.process_id] = program
        self._group.create_task(self._attend(process, read, program, record), name=f"process {process.pid}")
        if program.most is not None and (self._counting is None or self._counting.done()):
            self._counting = self._group.create_task(self._count(), name="count processes")
        return process

    def of(self, session_key: str) -> list[Program]:
        """The programs of a session, the oldest first."""
        return [p for p in self._programs.values() if p.session_key == session_key]

    def forget(self, program: Program) -> None:
        """Nobody needs to know any more how it ended."""
        if not program.running:
            self._programs.pop(program.process_id, None)

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

    async def recover(self, left: list[_Record]) -> None:
        """End what an earlier gateway left running."""
        for record in left:
            ended = await asyncio.to_thread(record.end)
            if ended:
                _log.warning("ended %d processes that an earlier gateway left running", ended)

    async def _attend(
        self, process: asyncio.subprocess.Process, read: int, program: Program, record: _Record
    ) -> None:
        """Take in what a program says until it ends by itself or has to, and see that nothing is left."""
        with _reading(read, program.output) as rest:
            exited = asyncio.ensure_future(process.wait())
            stopped = asyncio.ensure_future(program.unwanted.wait())
            try:
                await asyncio.wait(
                    [exited, stopped], timeout=program.timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not exited.done():
                    program.why = program.why or "timeout"
                    await _end(process, exited, boxed=program.boxed)
                    await asyncio.to_thread(_kill_marked, program.mark)
                elif not program.boxed:  # a sandbox ends with its first process, and all in it
                    await asyncio.to_thread(_kill_marked, program.mark)
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

    async def _count(self) -> None:
        """End programs with too many processes, where the kernel would let them go on."""
        while limited := [p for p in self._programs.values() if p.running and p.most is not None]:
            await asyncio.sleep(_COUNT_EVERY_S)
            counts = await asyncio.to_thread(_per_namespace, [p.pid for p in limited])
            for program in limited:
                if program.running and counts.get(program.pid, 0) > (program.most or 0):
                    program.stop("too many processes")


@asynccontextmanager
async def open_processes(folder: Path) -> AsyncIterator[Processes]:
    """Programs that end with this context at the latest. What an earlier one left is ended meanwhile."""
    with unwrapped():
        async with asyncio.TaskGroup() as group:
            processes = Processes(folder, group)
            if left := _records(folder):
                group.create_task(processes.recover(left), name="end leftovers")
            try:
                yield processes
            finally:
                await processes.close()


@contextlib.contextmanager
def _reading(fd: int, output: Output) -> Iterator[Callable[[], None]]:
    """Take in what comes, gently when there is much of it. Gives a function that takes in what is left."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    again: asyncio.TimerHandle | None = None

    def take() -> bool:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        output.add(data)
        return bool(data)

    def readable() -> None:
        nonlocal again
        if not take():
            loop.remove_reader(fd)
        elif output.total > _FLOOD_BYTES:
            loop.remove_reader(fd)
            again = loop.call_later(_FLOOD_PAUSE_S, loop.add_reader, fd, readable)

    def rest() -> None:
        for _ in range(32):  # what a pipe holds at most; somebody may go on writing
            if not take():
                break

    loop.add_reader(fd, readable)
    try:
        yield rest
    finally:
        if again is not None:
            again.cancel()
        loop.remove_reader(fd)
        os.close(fd)


async def _end(process: asyncio.subprocess.Process, exited: asyncio.Future[int], *, boxed: bool) -> None:
    """Ask the group to end, then make it. A sandbox is ended at once: with it goes all that is inside."""
    for number in (signal.SIGKILL,) if boxed else (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            if process.returncode is None:  # its number is its own until then
                os.killpg(process.pid, number)
        await asyncio.wait([exited], timeout=_GRACE_S)
        if exited.done():
            return
    await exited


class _Record:
    """That a program runs: its mark is the name of the file, its process and when that began stand in it."""

    def __init__(self, folder: Path, mark: str) -> None:
        self._path = folder / f"{mark}.json"
        self._mark = mark

    def write(self, pid: int) -> None:
        statedir.private_dir(self._path.parent)
        text = orjson.dumps({"pid": pid, "begun": _begun(pid), "boot": _boot()})
        with open(statedir.open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(text)

    def remove(self) -> None:
        with suppress(OSError):
            self._path.unlink()

    def end(self) -> int:
        """End what is left of the program. Returns how many processes that were."""
        with suppress(OSError, ValueError):
            said = orjson.loads(self._path.read_bytes())
            same = said["pid"] and said["boot"] == _boot() and said["begun"] == _begun(said["pid"])
            if same and said["begun"] is not None:
                os.killpg(said["pid"], signal.SIGKILL)
        ended = _kill_marked(self._mark)
        self.remove()
        return ended


def _records(folder: Path) -> list[_Record]:
    return [_Record(folder, path.stem) for path in folder.glob("*.json")]


def _begun(pid: int) -> str | None:
    """When a process began, in ticks since the machine did: with its number that names it for good."""
    with suppress(OSError, IndexError):
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    return None


def _boot() -> str | None:
    with suppress(OSError):
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return None


def _kill_marked(mark: str) -> int:
    """Kill every process with this mark, until there is none. Blocks."""
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = _marked(mark)
        if not found:
            break
        for pid in found:
            with suppress(OSError):
                _kill_if_marked(pid, mark)
                killed.add(pid)
    return len(killed)


def _kill_if_marked(pid: int, mark: str) -> None:
    """Hold on to the process first, so that its number cannot come to mean another."""
    if sys.platform != "linux":
        return
    held = os.pidfd_open(pid)
    try:
        if _has_mark(pid, mark):
            signal.pidfd_send_signal(held, signal.SIGKILL)
    finally:
        os.close(held)


def _marked(mark: str) -> list[int]:
    return [pid for pid in _pids() if _has_mark(pid, mark)]


def _has_mark(pid: int, mark: str) -> bool:
    with suppress(OSError):
        return f"{MARK}={mark}".encode() in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return False


def _pids() -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    return []


def _per_namespace(outer: list[int]) -> dict[int, int]:
    """How many processes there are in the sandboxes of these programs. Blocks."""
    counts: Counter[str] = Counter()
    for pid in _pids():
        with suppress(OSError):
            counts[os.readlink(_PROC / str(pid) / "ns/pid")] += 1
    found = {}
    for pid in outer:
        with suppress(OSError, IndexError):
            first = (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()[0]
            found[pid] = counts[os.readlink(_PROC / first / "ns/pid")]
    return found
