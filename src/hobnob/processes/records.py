"""How processes are found again: by a mark in their environment, and by a file that says what runs."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

import orjson

from hobnob import statedir

MARK = "HOBNOB_PROCESS"

_ROUNDS = 50  # of looking for what is left of a program
_END_MS = 1000  # for a process that was killed to be gone
_PROC = Path("/proc")


class ProcessRecord:
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
        ended = kill_marked(self._mark)
        self.remove()
        return ended


def records(folder: Path) -> list[ProcessRecord]:
    return [ProcessRecord(folder, path.stem) for path in folder.glob("*.json")]


def _begun(pid: int) -> str | None:
    """When a process began, in ticks since the machine did: with its number that names it for good."""
    with suppress(OSError, IndexError):
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]
    return None


def _boot() -> str | None:
    with suppress(OSError):
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return None


def kill_marked(mark: str) -> int:
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
    """Hold on to the process first, so that its number cannot come to mean another; then see it end."""
    if sys.platform != "linux":
        return
    held = os.pidfd_open(pid)
    try:
        if _has_mark(pid, mark):
            signal.pidfd_send_signal(held, signal.SIGKILL)
            ended = select.poll()
            ended.register(held, select.POLLIN)
            ended.poll(_END_MS)
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


def per_sandbox(outer: list[int]) -> dict[int, list[int]]:
    """The processes that are in the sandboxes of these programs. Blocks."""
    places: dict[str, list[int]] = {}
    for pid in _pids():
        with suppress(OSError):
            places.setdefault(os.readlink(_PROC / str(pid) / "ns/pid"), []).append(pid)
    found = {}
    for pid in outer:
        with suppress(OSError, IndexError):
            first = (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()[0]
            found[pid] = places.get(os.readlink(_PROC / first / "ns/pid"), [])
    return found


def memory_kb(pids: list[int], enough_kb: int) -> int:
    """What processes have of memory together, files not counted. Blocks.

    What several of them share counts once; but to find that out takes long, so it is done only where the
    plain sum is more than `enough_kb`.
    """
    plain = sum(_amounts(pid, "status", ("RssAnon:", "RssShmem:")) for pid in pids)
    if plain <= enough_kb:
        return plain
    return sum(_amounts(pid, "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) for pid in pids)


def _amounts(pid: int, file: str, names: tuple[str, ...]) -> int:
    with suppress(OSError, ValueError):
        lines = (_PROC / str(pid) / file).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(names))
    return 0
