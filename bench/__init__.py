"""Benchmarks: each figure with its budget and a baseline (floor) measured in the same run.

A script has a function `run` that returns figures; `python -m bench [script …]` prints them in one table.
Absolute times vary on a shared machine, so a budget is a ratio to the floor wherever possible.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: str
    floor: str
    ratio: float
    budget: str
    holds: bool


def median_s(work: Callable[[], object], times: int) -> float:
    """The median time of `times` calls of `work`."""
    durations = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)
