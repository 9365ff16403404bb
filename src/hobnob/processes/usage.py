"""What sandboxes use, read from /proc: their processes and the memory of these."""

from __future__ import annotations

import os
from contextlib import suppress

from hobnob.processes.records import PROC, all_pids


def sandbox_pids(outer_pids: list[int]) -> dict[int, list[int]]:
    """For the outer process of each sandbox, the processes in its PID namespace. Blocks."""
    by_namespace: dict[str, list[int]] = {}
    for pid in all_pids():
        with suppress(OSError):
            by_namespace.setdefault(os.readlink(PROC / str(pid) / "ns/pid"), []).append(pid)
    found = {}
    for pid in outer_pids:
        with suppress(OSError, IndexError):
            first = (PROC / str(pid) / "task" / str(pid) / "children").read_text().split()[0]
            found[pid] = by_namespace.get(os.readlink(PROC / first / "ns/pid"), [])
    return found


def memory_kb(pids: list[int], limit_kb: int) -> int:
    """The memory of processes together, without file pages. Blocks.

    Shared pages count once. To find them is slow, so that is done only when the plain sum is over `limit_kb`.
    """
    plain = sum(_sum_kb(pid, "status", ("RssAnon:", "RssShmem:")) for pid in pids)
    if plain <= limit_kb:
        return plain
    return sum(_sum_kb(pid, "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) for pid in pids)


def _sum_kb(pid: int, file: str, names: tuple[str, ...]) -> int:
    with suppress(OSError, ValueError):
        lines = (PROC / str(pid) / file).read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(names))
    return 0
