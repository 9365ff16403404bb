"""Wait for turns to end; refuse waits and chains of turns that never would."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from hobnob.config import Settings
from hobnob.errors import NotAllowed
from hobnob.events import Change, SessionDeleted, TurnChanged
from hobnob.fixes import config_set
from hobnob.store import Store, Tx, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.types import Turn

_JUST_ENDED = 200  # turns kept in memory
_RECHECKED = 200  # open turns that are looked up at a time, besides those that somebody waits for


@dataclass(eq=False, slots=True)
class _Join:
    """A caller that waits until `needed` of several turns have ended."""

    needed: int
    ended: set[str] = field(default_factory=set)
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, turn_ids: Iterable[str]) -> None:
        self.ended.update(turn_ids)
        if len(self.ended) >= self.needed:
            self.enough.set()


class TurnWaiters:
    """Futures of callers that wait for a turn, resolved from the changes the store reports."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: dict[str, set[asyncio.Future[Turn]]] = {}
        self._joins: dict[str, set[_Join]] = {}
        self._open: dict[str, str] = {}  # turns known to be open, with their session keys
        self._just_ended: dict[str, Turn] = {}  # the last ones: most waits come right after a turn
        store.watch(self._on_changes)

    def session_of(self, turn_id: str) -> str | None:
        """The session key of a turn that is open or has just ended; None when only the store can tell."""
        ended = self._just_ended.get(turn_id)
        return ended.session_key if ended is not None else self._open.get(turn_id)

    async def ended(self, turn_id: str, timeout_s: float | None = None) -> Turn:
        """The turn once it has ended, or as it is after the timeout. Raises NotFound."""
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        while True:
            turn = await self._ended_or_current(turn_id, deadline)
            if turn.merged_into is None:
                return turn
            turn_id = turn.merged_into  # the outcome of that turn counts for this one

    async def enough(self, turn_ids: Collection[str], needed: int, timeout_s: float) -> None:
        """Return when `needed` of the turns have ended, or the time is over."""
        join = _Join(needed)
        for turn_id in turn_ids:  # before the read, so that an end in between is not missed
            self._joins.setdefault(turn_id, set()).add(join)
        try:
            join.add(await self._store.read(turns.ended_of, turn_ids))
            if not join.enough.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await join.enough.wait()
        finally:
            for turn_id in turn_ids:
                self._joins[turn_id].discard(join)
                if not self._joins[turn_id]:
                    del self._joins[turn_id]

    async def _ended_or_current(self, turn_id: str, deadline: float | None) -> Turn:
        if (ended := self._just_ended.get(turn_id)) is not None:
            return ended
        waiter: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(turn_id, set())
        waiters.add(waiter)  # before the read, so that an end in between is not missed
        try:
            if turn_id not in self._open:
                turn = await self._store.read_small(turns.get, turn_id)
                if turn.status == "ended":
                    return turn
            left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
            await asyncio.wait([waiter], timeout=left)
            return waiter.result() if waiter.done() else await self._store.read_small(turns.get, turn_id)
        finally:
            waiters.discard(waiter)
            if not waiters:
                self._waiters.pop(turn_id, None)

    def wants(self, _session_key: str, turn_id: str | None) -> bool:
        """Whether somebody waits for a turn, or it was accepted here."""
        return turn_id in self._open or turn_id in self._waiters or turn_id in self._joins

    def unsettled(self) -> set[str]:
        """Turns that are not known to have ended: those that somebody waits for, and the oldest others."""
        return {*islice(self._open, _RECHECKED), *self._waiters, *self._joins}

    def gone(self, turn_ids: Iterable[str]) -> None:
        """These turns do not exist any more: their sessions were deleted, by way of another gateway."""
        for turn_id in turn_ids:
            self._open.pop(turn_id, None)
            for waiter in self._waiters.get(turn_id, ()):
                if not waiter.done():
                    waiter.set_exception(turns.not_found(turn_id))
            for join in self._joins.get(turn_id, ()):
                join.add([turn_id])

    def forget_ended(self) -> None:
        """Ask the store again about turns that have ended."""
        self._just_ended.clear()

    def _on_changes(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, SessionDeleted):
                self.forget_ended()
            if not isinstance(change, TurnChanged):
                continue
            turn = change.turn
            if turn.status != "ended":
                self._open[turn.turn_id] = turn.session_key
                continue
            self._open.pop(turn.turn_id, None)
            self._remember(turn)
            for join in self._joins.get(turn.turn_id, ()):
                join.add([turn.turn_id])
                if turn.merged_into is not None:  # the caller has to wait for another turn now
                    join.enough.set()
            for waiter in self._waiters.get(turn.turn_id, ()):
                if not waiter.done():
                    waiter.set_result(turn)

    def _remember(self, turn: Turn) -> None:
        self._just_ended[turn.turn_id] = turn
        if len(self._just_ended) > _JUST_ENDED:
            del self._just_ended[next(iter(self._just_ended))]


def refuse_deadlock(tx: Tx, requester: str, target: str) -> None:
    """Refuse a wait that would close a circle of waiting sessions."""
    refuse_deadlocks(tx, requester, [target], 1)


def refuse_deadlocks(tx: Tx, requester: str, targets: Iterable[str], needed: int) -> None:
    """Refuse a wait for `needed` of the targets if so many of them wait for the requester that it never ends.

    A target is listed once for each turn that is waited for.
    """
    exchange_rows.lock_waits(tx)
    paths: dict[str, list[str] | None] = {}
    free, circle = 0, None
    for target in targets:
        if target not in paths:
            paths[target] = _wait_path(tx, target, requester)
        free += paths[target] is None
        circle = circle or paths[target]
    if circle is not None and free < needed:
        raise NotAllowed(
            f"Waiting here would never end: {' waits for '.join([requester, *circle])}.",
            rule="deadlock",
            fix="Send with timeoutSeconds 0 and go on, or answer first.",
        )


def _wait_path(tx: Tx, start: str, goal: str) -> list[str] | None:
    """The sessions from `start` to `goal` of which each waits for the next."""
    came_from: dict[str, str | None] = {start: None}
    to_visit = [start]
    while to_visit:
        key = to_visit.pop()
        if key == goal:
            path: list[str] = []
            at: str | None = key
            while at is not None:
                path.append(at)
                at = came_from[at]
            return path[::-1]
        for awaited in exchange_rows.awaited_by(tx, key):
            if awaited not in came_from:
                came_from[awaited] = key
                to_visit.append(awaited)
    return None


def next_hop(settings: Settings, turn: Turn | None) -> int:
    """The hop count of what a turn causes. Raises NotAllowed beyond the limit."""
    limit, hop = settings.session.agent_to_agent.max_hops, turn.hop + 1 if turn else 1
    if hop > limit:
        raise NotAllowed(
            f"This would be hop {hop} of agents that cause each other to act; the limit is {limit}.",
            rule="hop_limit",
            fix=f"Answer instead of asking on, or: {config_set('session.agentToAgent.maxHops', hop)}",
        )
    return hop
