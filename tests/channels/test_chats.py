"""From a chat message to a turn and back: through a real gateway, with a channel in the test's process."""

from pathlib import Path

from tests.channels.line import Line
from tests.integration.helpers import texts

from hobnob.store import sessions
from hobnob.testing import rehearse, script


async def test_a_message_from_a_chat_is_answered_where_it_came_from(tmp_path: Path) -> None:
    line = Line()
    async with rehearse(tmp_path, line.settings() | script("Hello Ann.")) as gateway:
        await line.say("hi there")
        (answer,) = await line.posts()
        assert (answer.text, answer.address.to, answer.address.thread_id) == ("Hello Ann.", "To-ann", None)
        assert await texts(gateway, "agent:main:main", "user") == ["hi there"]
        session = await gateway.store.read(sessions.get, "agent:main:main")
        assert (session.last_channel, session.last_to, session.last_account_id) == (
            "line",
            "To-ann",
            "default",
        )


async def test_the_same_event_starts_one_turn(tmp_path: Path) -> None:
    line = Line()
    async with rehearse(tmp_path, line.settings()) as gateway:
        message = line.message("what is 6 * 7?")
        assert await line.give([message, message]) == 1
        assert await line.give([message]) == 0
        await line.posts()
        assert await texts(gateway, "agent:main:main", "user") == ["what is 6 * 7?"]
