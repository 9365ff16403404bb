"""The hub: publishes events to subscribers in this process.

Publishing never blocks. Each subscription has a bounded queue. A subscriber that falls behind loses its
subscription, is told so, and catches up from the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

from hobnob.events import AnswerDelta, Change, Event, LiveEvent, SessionDeleted
from hobnob.records import replace

_log = logging.getLogger(__name__)
QUEUE_SIZE = 1000
MERGED_CHARS = 8_000  # longest text that queued deltas are merged into
AT_ONCE = 64  # subscribers that get an event in one iteration of the loop
_MAX_WAITING = 20_000  # offers that wait for a later iteration


class Subscription:
    """Events in order, until it is closed or falls behind; then `lagged` is true and iteration ends.

    Queued deltas of one answer are merged, so a long answer needs few places in the queue.
    """

    def __init__(self, hub: Hub, accepts: Callable[[Event], bool] | None, size: int) -> None:
        self._hub = hub
        self._accepts = accepts
        self._queue: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._size = size
        self.topics: set[str | None] = set()
        self._woken = False
        self.lagged = False
        self.on_lag: Callable[[], None] | None = None
        self.deliver_now: Callable[[Event], bool] | None = None  # handles an event without queueing it

    def follow(self, session_key: str | None) -> None:
        """Receive all events of one session; with None, the changes of every session."""
        self.topics.add(session_key)
        if session_key not in self._hub.by_topic:
            self._hub.by_topic[session_key] = set()
            self._hub.on_topic(session_key, True)
        self._hub.by_topic[session_key].add(self)

    def unfollow(self, session_key: str | None) -> None:
        self.topics.discard(session_key)
        if subscriptions := self._hub.by_topic.get(session_key):
            subscriptions.discard(self)
            if not subscriptions:
                del self._hub.by_topic[session_key]
                self._hub.on_topic(session_key, False)

    def close(self) -> None:
        """Receive nothing more."""
        for topic in list(self.topics):
            self.unfollow(topic)
        self._hub.all_topics.discard(self)

    def offer(self, event: Event) -> None:
        """Queue an event, merge it into the last one, or hand it over at once when nothing is queued."""
        if self.lagged or (self._accepts is not None and not self._accepts(event)):
            return
        if merged := merge_deltas(self._queue[-1], event) if self._queue else None:
            self._queue[-1] = merged
        elif self.deliver_now is not None and self._is_idle and self.deliver_now(event):
            return
        elif len(self._queue) >= self._size:
            self.lagged = True
            self._hub.lost += 1
            if self.on_lag is not None:
                self.on_lag()
        else:
            self._queue.append(event)
        self._notify()

    def wake(self) -> None:
        """Make `next` return None, so that its caller attends to something else."""
        self._woken = True
        self._notify()

    @property
    def _is_idle(self) -> bool:
        """Whether the subscriber has handled everything and waits in `next`."""
        return not self._queue and self._waiter is not None and not self._waiter.done()

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> Event | None:
        """The next event; None when the subscription is lost or was woken."""
        while not self._queue:
            if self.lagged or self._woken:
                self._woken = False
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._queue.popleft()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next()) is not None:
            yield event

    def __len__(self) -> int:
        return len(self._queue)


def merge_deltas(last: Event, event: Event) -> AnswerDelta | None:
    if not isinstance(last, AnswerDelta) or not isinstance(event, AnswerDelta):
        return None
    if event.restart or last.restart or len(last.text) > MERGED_CHARS:
        return None
    same = last.turn_id == event.turn_id and last.thinking == event.thinking
    return replace(last, text=last.text + event.text) if same else None


def _offer(subscription: Subscription, event: Event) -> None:
    try:
        subscription.offer(event)
    except Exception:  # a failing subscriber must not affect the publisher or other subscribers
        _log.exception("subscriber failed: its subscription is closed")
        subscription.close()
    if isinstance(event, SessionDeleted):
        subscription.unfollow(event.session_key)


class Hub:
    """Subscriptions by topic: an event costs the subscribers of its session, not every connection."""

    def __init__(self) -> None:
        self.all_topics: set[Subscription] = set()
        self.by_topic: dict[str | None, set[Subscription]] = {}
        self.lost = 0  # subscriptions that fell behind
        self._waiting: deque[tuple[Subscription, Event]] = deque()  # offers, in order
        self.on_topic: Callable[[str | None, bool], None] = lambda topic, followed: None
        self.on_live: Callable[[LiveEvent], None] | None = None  # gets what happens here and is not stored

    def publish_live(self, event: LiveEvent) -> None:
        """Publish something that happens in this process and is not stored."""
        self.publish(event)
        if self.on_live is not None:
            self.on_live(event)

    def publish(self, event: Event) -> None:
        subscriptions: set[Subscription] = self.all_topics
        if self.by_topic:
            of_session = self.by_topic.get(event.session_key)
            of_all = self.by_topic.get(None) if isinstance(event, Change) else None
            if of_session or of_all:
                subscriptions = subscriptions.union(of_session or (), of_all or ())
        if self._waiting or len(subscriptions) > AT_ONCE:
            self._offer_later(event, subscriptions)
            return
        for subscription in list(subscriptions):
            _offer(subscription, event)

    def _offer_later(self, event: Event, subscriptions: set[Subscription]) -> None:
        """Offer an event to many subscribers in steps: the loop does other work between them.

        So whoever caused the event is answered before the last subscriber has it. Later events wait behind
        it. When too many wait, the publisher is slowed down instead.
        """
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._offer_next)
        self._waiting.extend((subscription, event) for subscription in subscriptions)
        while len(self._waiting) > _MAX_WAITING:
            _offer(*self._waiting.popleft())

    def _offer_next(self) -> None:
        for _ in range(min(AT_ONCE, len(self._waiting))):
            _offer(*self._waiting.popleft())
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._offer_next)

    def publish_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self.publish(event)

    def subscribe(
        self,
        accepts: Callable[[Event], bool] | None = None,
        *,
        size: int = QUEUE_SIZE,
        topics_only: bool = False,
    ) -> Subscription:
        """Subscribe to every event, or only to topics that are followed later. Release it with `close`."""
        subscription = Subscription(self, accepts, size)
        if not topics_only:
            self.all_topics.add(subscription)
        return subscription

    @property
    def backlog(self) -> int:
        """The length of the longest queue."""
        subscriptions = self.all_topics.union(*self.by_topic.values())
        return max((len(subscription) for subscription in subscriptions), default=0)
