"""The hub: what happens, told to whoever listens, as it happens.

Everything that is committed is told, and besides it what is only said: the pieces of an answer, the start of
a tool. Publishing never waits. Each listener has a bounded queue; one that does not keep up loses its
subscription, is told so, and reads from the store what it missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from hobnob.events import Change, SessionDeleted
from hobnob.types import Delivery

_log = logging.getLogger(__name__)
QUEUE_SIZE = 1000
MERGED_CHARS = 8_000


@dataclass(frozen=True, slots=True)
class AnswerDelta:
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
class WebchatMessage:
    """A message for the people of a session, at the gateway's own chat."""

    session_key: str
    delivery: Delivery


Event = Change | AnswerDelta | ToolStarted | WebchatMessage


class Subscription:
    """Events in order, until it is left or falls behind; then `lagged` is true and iteration ends.

    Pieces of one answer that wait together are joined, so that a long answer needs few places.
    """

    def __init__(self, hub: Hub, wanted: Callable[[Event], bool] | None, size: int) -> None:
        self._hub = hub
        self._wanted = wanted
        self._waiting: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._size = size
        self.topics: set[str | None] = set()
        self._woken = False
        self.lagged = False
        self.on_lag: Callable[[], None] | None = None
        self.at_once: Callable[[Event], bool] | None = None  # takes an event, where that needs no waiting

    def follow(self, session_key: str | None) -> None:
        """Hear all of one session; with None, what is committed in any."""
        self.topics.add(session_key)
        self._hub.listeners.setdefault(session_key, set()).add(self)

    def unfollow(self, session_key: str | None) -> None:
        self.topics.discard(session_key)
        if listening := self._hub.listeners.get(session_key):
            listening.discard(self)
            if not listening:
                del self._hub.listeners[session_key]

    def leave(self) -> None:
        """Hear nothing any more."""
        for topic in list(self.topics):
            self.unfollow(topic)
        self._hub.everywhere.discard(self)

    def offer(self, event: Event) -> None:
        if self.lagged or (self._wanted is not None and not self._wanted(event)):
            return
        if joined := _joined(self._waiting[-1], event) if self._waiting else None:
            self._waiting[-1] = joined
        elif self.at_once is not None and self._is_idle and self.at_once(event):
            return
        elif len(self._waiting) >= self._size:
            self.lagged = True
            self._hub.lost += 1
            if self.on_lag is not None:
                self.on_lag()
        else:
            self._waiting.append(event)
        self._ring()

    def wake(self) -> None:
        """Have whoever waits for an event look after something else: it gets None."""
        self._woken = True
        self._ring()

    @property
    def _is_idle(self) -> bool:
        """Whether whoever listens is through with what there was."""
        return not self._waiting and self._waiter is not None and not self._waiter.done()

    def _ring(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> Event | None:
        """The next event; None when the subscription is lost, or when it was woken."""
        while not self._waiting:
            if self.lagged or self._woken:
                self._woken = False
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._waiting.popleft()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next()) is not None:
            yield event

    def __len__(self) -> int:
        return len(self._waiting)


def _joined(last: Event, event: Event) -> AnswerDelta | None:
    if (
        not isinstance(last, AnswerDelta)
        or not isinstance(event, AnswerDelta)
        or event.restart
        or last.restart
    ):
        return None
    same = last.turn_id == event.turn_id and last.thinking == event.thinking
    if not same or len(last.text) > MERGED_CHARS:
        return None
    return replace(last, text=last.text + event.text)


class Hub:
    """Who listens to what. An event costs those who follow its session, not those who are connected."""

    def __init__(self) -> None:
        self.everywhere: set[Subscription] = set()
        self.listeners: dict[str | None, set[Subscription]] = {}
        self.lost = 0  # subscriptions that fell behind

    def publish(self, event: Event) -> None:
        heard: set[Subscription] = self.everywhere
        if self.listeners:
            following = self.listeners.get(event.session_key)
            watching = self.listeners.get(None) if isinstance(event, Change) else None
            if following or watching:
                heard = heard.union(following or (), watching or ())
        for subscription in list(heard):
            try:
                subscription.offer(event)
            except Exception:  # whoever cannot be told is not told: it is nobody else's trouble
                _log.exception("a listener failed and is heard of no more")
                subscription.leave()
        if isinstance(event, SessionDeleted):
            for subscription in list(self.listeners.get(event.session_key, ())):
                subscription.unfollow(event.session_key)

    def publish_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self.publish(event)

    def subscribe(
        self,
        wanted: Callable[[Event], bool] | None = None,
        *,
        size: int = QUEUE_SIZE,
        everything: bool = True,
    ) -> Subscription:
        """Listen from now on: to everything, or to what is then followed. Give it back with `leave`."""
        subscription = Subscription(self, wanted, size)
        if everything:
            self.everywhere.add(subscription)
        return subscription

    @property
    def backlog(self) -> int:
        """How many events wait for the slowest listener."""
        everybody = self.everywhere.union(*self.listeners.values())
        return max((len(subscription) for subscription in everybody), default=0)
