"""Crash points: named points between two commits where a test can kill or stop the process.

`HOBNOB_CRASH_AT=after-claim` kills it at that point, `HOBNOB_CRASH_AT=after-step:3` at its third visit.
`HOBNOB_HANG_AT` stops it with SIGSTOP instead, until the test continues it.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

TURN_POINTS = (
    "after-accept",
    "after-claim",
    "before-model",
    "after-model",
    "after-step",
    "before-tool",
    "after-tool",
    "after-tool-result",
    "before-end",
    "after-end",
)
EXCHANGE_POINTS = ("after-tell", "after-spawn", "before-delivery", "after-delivery")
CHAT_POINTS = ("before-inbox", "after-inbox")
RETENTION_POINTS = ("after-removal",)
JOIN_POINTS = ("after-join", "before-join-end")
JOB_POINTS = ("before-due", "after-due")
BUDGET_POINTS = ("after-reserve",)
COMPACTION_POINTS = (
    "before-flush",
    "after-flush",
    "after-summary-part",
    "before-compaction",
    "after-compaction",
)
POINTS = (
    *TURN_POINTS,
    *EXCHANGE_POINTS,
    *CHAT_POINTS,
    *RETENTION_POINTS,
    *JOB_POINTS,
    *COMPACTION_POINTS,
    *BUDGET_POINTS,
    *JOIN_POINTS,
)
armed = os.environ.get("HOBNOB_CRASH_AT") or os.environ.get("HOBNOB_HANG_AT")
_SIGNAL = signal.SIGSTOP if os.environ.get("HOBNOB_HANG_AT") else signal.SIGKILL
_visits: Counter[str] = Counter()


def point(name: str) -> None:
    """Kill or stop the process if this crash point is armed and due."""
    if armed is None:
        return
    assert name in POINTS, f"{name} is not listed"
    _visits[name] += 1
    armed_name, _, visit = armed.partition(":")
    if armed_name == name and _visits[name] == int(visit or 1):
        os.kill(os.getpid(), _SIGNAL)
