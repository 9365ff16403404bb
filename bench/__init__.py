"""The figures Hobnob promises, each beside a floor measured in the same run.

A script has a function `run` that returns figures; `python -m bench [script …]` prints them in one table.
Times on a shared machine say little, ratios to a floor say a lot: a budget is a ratio wherever it can be.
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
    """The median time of a call."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
