"""Why a gateway sent no heartbeat: code blocked its event loop, or it did not run, or lost the database."""

from __future__ import annotations

from hobnob.records import Struct


class Activity(Struct, frozen=True):
    """How much a process has done by a moment, in seconds: CPU used, steps of a thread, ticks of its loop."""

    at_s: float = 0.0
    cpu_s: float = 0.0
    thread_s: float = 0.0
    loop_s: float = 0.0


def stood_still(before: Activity, after: Activity) -> bool:
    """Whether a process did next to nothing: it was stopped, or its machine was."""
    done = max(after.cpu_s - before.cpu_s, after.thread_s - before.thread_s, after.loop_s - before.loop_s)
    return done < (after.at_s - before.at_s) / 2


def loop_was_blocked(before: Activity, after: Activity) -> bool:
    """Whether the event loop stood still while the process ran.

    A process that is stopped, or whose machine is, does nothing at all; one that only lost the database
    has a loop that goes on. Code that waits in the loop lets threads run; code that computes uses the CPU and
    may keep threads out.
    """
    half = (after.at_s - before.at_s) / 2
    ran = max(after.cpu_s - before.cpu_s, after.thread_s - before.thread_s)
    return ran > half > after.loop_s - before.loop_s
