"""The hub: what happens, told to whoever listens, as it happens.

Publishing never waits. Each listener has a bounded queue; one that does not keep up loses its subscription,
is told so, and reads from the store what it missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from hobnob.types import Entry, Turn

QUEUE = 1000


@dataclass(frozen=True, slots=True)
class TurnStarted:
    session_key: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of an answer that is being written. `restart` means: forget what came before it."""

    session_key: str
    turn_id: str
    text: str
    thinking: bool = False
    restart: bool = False


@dataclass(frozen=True, slots=True)
class ToolStarted:
    session_key: str
    turn_id: str
    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EntryAdded:
    session_key: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class TurnEnded:
    session_key: str
    turn: Turn


Event = TurnStarted | Said | ToolStarted | EntryAdded | TurnEnded


class Subscription:
    """Events in order, until it is left or falls behind; then `lagged` is true and iteration ends."""

    def __init__(self, wanted: Callable[[Event], bool], size: int) -> None:
        self._wanted = wanted
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue(size + 1)
        self._size = size
        self.lagged = False

    def offer(self, event: Event) -> None:
        if self.lagged or not self._wanted(event):
            return
        if self._queue.qsize() >= self._size:
            self.lagged = True
            self._queue.put_nowait(None)
        else:
            self._queue.put_nowait(event)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._queue.get()) is not None:
            yield event


class Hub:
    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    def publish(self, event: Event) -> None:
        for subscription in list(self._subscriptions):
            subscription.offer(event)

    def subscribe(
        self, wanted: Callable[[Event], bool] = lambda _: True, *, size: int = QUEUE
    ) -> Subscription:
        """Listen from now on. Give it back with `leave`."""
        subscription = Subscription(wanted, size)
        self._subscriptions.add(subscription)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)
