"""Messages from chats in the store: each is taken up once."""

from hobnob.chat_types import InboxEvent
from hobnob.store import Store
from hobnob.store.chats import inbox


async def test_a_message_that_was_taken_up_does_not_wait_any_more(store: Store) -> None:
    """Its account may have moved to another gateway, which takes up what waits."""
    await store.write(inbox.add, message("1"))
    await store.write(inbox.add, message("2"))
    first, second = waiting = await store.read(inbox.waiting)
    await store.write(inbox.settle, [first], "turn", code="ok", turn_id="t-1")
    assert await store.write(inbox.still_waiting, waiting) == [second]


async def test_what_became_of_a_message_is_recorded_once(store: Store) -> None:
    await store.write(inbox.add, message("1"))
    waiting = await store.read(inbox.waiting)
    await store.write(inbox.settle, waiting, "turn", code="ok", turn_id="t-1")
    await store.write(inbox.settle, waiting, "refused", code="broken")
    found = await store.read(inbox.find, "pager", "default", "1")
    assert found is not None
    assert (found.state, found.code, found.turn_id) == ("turn", "ok", "t-1")


def message(event_id: str) -> InboxEvent:
    return InboxEvent(
        channel="pager",
        account_id="default",
        event_id=event_id,
        chat_id="c",
        recipient="c",
        sender_id="s",
        state="waiting",
        code="ok",
        due_at_ms=0,
    )
