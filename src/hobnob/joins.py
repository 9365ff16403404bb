"""Joins: waits for several runs at once. Pure functions: no clock, no database.

A wait is open until enough of its runs have ended or its deadline has passed; from then on its answer never
changes. `Wait` is the row: a turn that waits in `agents_wait` (kind `join`, ids of turns), or a session that
ended its turn with `sessions_yield` and is to be woken (kind `yield`, ids of exchanges).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import orjson

from hobnob.errors import BadInput
from hobnob.records import Struct, field, replace
from hobnob.types import now_ms

Mode = Literal["all", "any"] | int
WaitState = Literal["open", "done", "timeout"]


class Wait(Struct, frozen=True):
    """A wait for `needed` of the runs `ids`, a JSON list. `completed` lists those that had ended at its end.

    `turn_id` is the turn that waits. Without `deadline_ms` it lasts until the runs have ended.
    """

    wait_id: str
    session_key: str
    kind: Literal["join", "yield"]
    ids: str
    needed: int
    turn_id: str | None = None
    deadline_ms: int | None = None
    state: WaitState = "open"
    completed: str | None = None
    created_at_ms: int = field(default_factory=now_ms)
    updated_at_ms: int = field(default_factory=now_ms)

    @property
    def members(self) -> list[str]:
        found: list[str] = orjson.loads(self.ids)
        return found

    @property
    def ended(self) -> list[str]:
        """The runs that had ended when the wait did."""
        found: list[str] = orjson.loads(self.completed) if self.completed else []
        return found


def encoded(ids: Sequence[str]) -> str:
    return orjson.dumps(list(ids)).decode()


def needed(mode: Mode, total: int) -> int:
    """How many of `total` runs must end. Raises BadInput."""
    if mode == "all":
        return total
    count = 1 if mode == "any" else int(mode)
    if not 1 <= count <= total:
        raise BadInput(f"mode is all, any or a number from 1 to {total}, the number of runs; not {mode}.")
    return count


def after(wait: Wait, ended: Collection[str], at_ms: int) -> Wait:
    """The wait at a time, when these runs have ended. One that is over stays as it is."""
    if wait.state != "open":
        return wait
    completed = [run for run in wait.members if run in ended]
    if len(completed) >= wait.needed:
        return replace(wait, state="done", completed=encoded(completed), updated_at_ms=at_ms)
    if wait.deadline_ms is not None and at_ms >= wait.deadline_ms:
        return replace(wait, state="timeout", completed=encoded(completed), updated_at_ms=at_ms)
    return wait
