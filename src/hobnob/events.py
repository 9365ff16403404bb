"""The hub: what happens, told to whoever listens, as it happens.

Publishing never waits. Each listener has a bounded queue; one that does not keep up loses its subscription,
is told so, and reads from the store what it missed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

from hobnob.types import Approval, Delivery, Entry, Turn

QUEUE = 1000
JOINED_CHARS = 8_000


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


@dataclass(frozen=True, slots=True)
class Posted:
    """A message for the people of a session, at the gateway's own chat."""

    session_key: str
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class ApprovalAsked:
    """A command waits for a person's yes."""

    session_key: str
    approval: Approval


@dataclass(frozen=True, slots=True)
class ApprovalDecided:
    """Somebody answered, or nobody did in time."""

    session_key: str
    approval: Approval


Event = TurnStarted | Said | ToolStarted | EntryAdded | TurnEnded | Posted | ApprovalAsked | ApprovalDecided


class Subscription:
    """Events in order, until it is left or falls behind; then `lagged` is true and iteration ends.

    Pieces of one answer that wait together are joined, so that a long answer needs few places.
    """

    def __init__(self, wanted: Callable[[Event], bool], size: int) -> None:
        self._wanted = wanted
        self._waiting: deque[Event] = deque()
        self._news = asyncio.Event()
        self._size = size
        self.lagged = False

    def offer(self, event: Event) -> None:
        if self.lagged or not self._wanted(event):
            return
        if joined := _joined(self._waiting[-1], event) if self._waiting else None:
            self._waiting[-1] = joined
        elif len(self._waiting) >= self._size:
            self.lagged = True
        else:
            self._waiting.append(event)
        self._news.set()

    async def next(self) -> Event | None:
        """The next event; None when the subscription is lost."""
        while not self._waiting:
            if self.lagged:
                return None
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next()) is not None:
            yield event


def _joined(last: Event, event: Event) -> Said | None:
    if not isinstance(last, Said) or not isinstance(event, Said) or event.restart or last.restart:
        return None
    same = last.turn_id == event.turn_id and last.thinking == event.thinking
    if not same or len(last.text) > JOINED_CHARS:
        return None
    return replace(last, text=last.text + event.text)


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
