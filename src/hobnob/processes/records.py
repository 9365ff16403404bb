"""How running processes are found again: by a mark in their environment and a file in the state directory."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

from hobnob import statedir
from hobnob.types import new_id

MARK = "HOBNOB_PROCESS"
PROC = Path("/proc")

_ROUNDS = 50  # of the search for marked processes, which may fork meanwhile
_KILL_WAIT_MS = 1000


class ProcessRecord:
    """A file that says a program runs: named by its mark, with its pid, start time and boot id as content."""

    def __init__(self, folder: Path, mark: str | None = None) -> None:
        self.mark = mark or new_id()
        self._path = folder / f"{self.mark}.json"

    def write(self, pid: int) -> None:
        statedir.private_dir(self._path.parent)
        text = orjson.dumps({"pid": pid, "begun": _start_time(pid), "boot": boot_id()})
        with open(statedir.open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(text)

    def remove(self) -> None:
        with suppress(OSError):
            self._path.unlink()

    def end(self) -> int:
        """Kill what is left of the program and remove the record. Returns the number of processes. Blocks."""
        killed = 0
        with suppress(OSError, ValueError):
            row = orjson.loads(self._path.read_bytes())
            if row["pid"] and row["begun"] is not None and row["boot"] == boot_id():
                killed += _kill_group(row["pid"], row["begun"])
        killed += kill_marked(self.mark)
        self.remove()
        return killed


def records(folder: Path) -> list[ProcessRecord]:
    return [ProcessRecord(folder, path.stem) for path in folder.glob("*.json")]


def _start_time(pid: int) -> str | None:
    """A process's start in ticks since boot: with the pid it identifies the process for good."""
    with suppress(OSError, IndexError):
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    return None


def boot_id() -> str | None:
    """Identifies the machine since it was started; None where the system does not tell."""
    with suppress(OSError):
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return None


def kill_marked(mark: str) -> int:
    """Kill every process with this mark until there is none. Returns their number. Blocks."""
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = [pid for pid in all_pids() if _has_mark(pid, mark)]
        if not found:
            break
        for pid in found:
            with suppress(OSError):
                _kill_if_marked(pid, mark)
                killed.add(pid)
    return len(killed)


def _kill_group(pid: int, start_time: str) -> bool:
    """Kill a process group and wait for its leader's exit; false when its pid is another process's by now."""
    with _pidfd(pid) as pidfd:
        if _start_time(pid) != start_time:
            return False
        os.killpg(pid, signal.SIGKILL)
        _wait_for_exit(pidfd)
        return True


def _kill_if_marked(pid: int, mark: str) -> None:
    """Kill a process and wait for its exit. Through a pidfd, so that a reused pid is not signalled."""
    if sys.platform != "linux":
        return
    with _pidfd(pid) as pidfd:
        if _has_mark(pid, mark):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            _wait_for_exit(pidfd)


@contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def _wait_for_exit(pidfd: int) -> None:
    exited = select.poll()
    exited.register(pidfd, select.POLLIN)
    exited.poll(_KILL_WAIT_MS)


def _has_mark(pid: int, mark: str) -> bool:
    with suppress(OSError):
        return f"{MARK}={mark}".encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return False


def all_pids() -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir(PROC) if name.isdigit()]
    return []
