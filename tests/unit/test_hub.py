"""Publishing to subscribers in the same process."""

import asyncio

from hobnob.events import AnswerDelta, SessionDeleted
from hobnob.hub import AT_ONCE, Hub

KEY = "agent:main:main"
MANY = 3 * AT_ONCE


def delta(text: str) -> AnswerDelta:
    return AnswerDelta(KEY, text, text, False, False)


async def test_a_few_subscribers_have_an_event_when_publish_returns() -> None:
    hub = Hub()
    subscriptions = [hub.subscribe() for _ in range(AT_ONCE)]
    hub.publish(delta("a"))
    assert [len(each) for each in subscriptions] == [1] * AT_ONCE


async def test_many_subscribers_get_an_event_in_steps_and_all_of_them_get_it() -> None:
    hub = Hub()
    subscriptions = [hub.subscribe() for _ in range(MANY)]
    hub.publish(delta("a"))
    assert sum(map(len, subscriptions)) == 0
    reached = []
    while sum(map(len, subscriptions)) < MANY:
        await asyncio.sleep(0)
        reached.append(sum(map(len, subscriptions)))
    assert reached == [AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE]


async def test_events_keep_their_order_for_each_of_many_subscribers() -> None:
    hub = Hub()
    subscriptions = [hub.subscribe() for _ in range(MANY)]
    for text in ("a", "b"):
        hub.publish(delta(text))
    await asyncio.sleep(0)
    hub.publish(delta("c"))  # some have the others already
    for each in subscriptions:
        found = [await each.next() for _ in range(3)]
        assert found == [delta("a"), delta("b"), delta("c")]


async def test_many_subscribers_of_a_deleted_session_are_told_before_they_are_unsubscribed() -> None:
    hub = Hub()
    subscriptions = [hub.subscribe(topics_only=True) for _ in range(MANY)]
    for each in subscriptions:
        each.follow(KEY)
    hub.publish(SessionDeleted(KEY, "s"))
    for each in subscriptions:
        assert await each.next() == SessionDeleted(KEY, "s")
    assert hub.by_topic == {}
