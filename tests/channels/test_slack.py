"""The Slack channel in a real gateway, against the fake of Slack."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.channels.fake_slack import APP_TOKEN, BOT_ID, BOT_TOKEN, BOT_USER, ROOM
from tests.channels.slack_platform import SlackPlatform
from tests.integration.helpers import texts, transcript
from tests.waiting import LIMIT_S, until

from hobnob import briefings
from hobnob.channels import Channel, NotNow, Outgoing, OutgoingFile, Undeliverable
from hobnob.channels.slack import directory
from hobnob.gateway import Gateway
from hobnob.inbound import Address, Media
from hobnob.store import deliveries, sessions
from hobnob.testing import rehearse, script
from hobnob.types import text_of

MAIN, IN_ROOM = "agent:main:main", f"agent:main:slack:channel:{ROOM.lower()}"
TO_ROOM = Address(f"channel:{ROOM}")


@pytest.fixture
async def slack() -> AsyncIterator[SlackPlatform]:
    platform = SlackPlatform()
    await platform.start()
    yield platform
    await platform.stop()


def settings(slack: SlackPlatform, **more: Any) -> dict[str, Any]:
    """Everybody may write to the bot; nothing is shown before an answer is complete."""
    rules = {"dmPolicy": "open", "allowFrom": ["*"], "streaming": {"mode": "off"}, "ackReaction": ""}
    return {"channels": {"slack": slack.settings() | slack.group_rules({}) | rules | more}}


@asynccontextmanager
async def connected(
    slack: SlackPlatform, home: Path, *answers: Any, session: str = "*", **more: Any
) -> AsyncIterator[Gateway]:
    before = slack.fake.opened
    answered = script(*answers, session=session) if answers else {}
    async with rehearse(home, settings(slack, **more) | answered) as gateway:
        await slack.fake.until(lambda: slack.fake.opened > before)
        yield gateway


def channel_of(gateway: Gateway) -> Channel:
    found = gateway.chats.accounts.find("slack", None)
    assert found is not None
    return found


async def shown(gateway: Gateway, key: str) -> list[str]:
    """The messages of people as the model gets them."""
    return [text_of(briefings.marked(m)) for m in await transcript(gateway, key) if m["role"] == "user"]


async def delivered(gateway: Gateway, key: str) -> Any:
    """The newest delivery of a session, once it is settled."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await gateway.store.read(deliveries.of_session, key)
            if found and found[0].state not in ("pending", "sending"):
                return found[0]
            await asyncio.sleep(0.01)


# receiving


@pytest.mark.promise("slack.stored_before_acknowledged")
async def test_a_message_is_acknowledged_after_it_was_stored(slack: SlackPlatform, tmp_path: Path) -> None:
    slack.fake.resend_after_s = 0.1
    await slack.stop()
    await slack.start()  # with the shorter time
    async with connected(slack, tmp_path) as gateway:
        [database] = tmp_path.rglob("hobnob.db")
        with closing(sqlite3.connect(database, isolation_level=None)) as lock:
            lock.execute("begin immediate")  # the gateway cannot write
            await slack.say("hello")
            await slack.fake.until(lambda: slack.fake.acknowledged or max(slack.fake.attempts.values()) >= 2)
            assert slack.fake.acknowledged == []
        await slack.fake.until(lambda: slack.fake.acknowledged)
        await slack.posts(1, chat="ann")
        assert await texts(gateway, MAIN, "user") == ["hello"]


@pytest.mark.promise("slack.one_turn_per_message")
async def test_a_mention_that_comes_as_two_events_is_one_turn(slack: SlackPlatform, tmp_path: Path) -> None:
    async with connected(slack, tmp_path) as gateway:
        await slack.say("what is 6 * 7?", room=True, mention=True)
        await slack.fake.until(lambda: not slack.fake.unanswered)
        await slack.posts(1, chat="room")
        [asked] = await texts(gateway, IN_ROOM, "user")
        assert asked.count("what is 6 * 7?") == 1
        assert len(slack.fake.acknowledged) >= 2


async def test_people_are_shown_by_their_names(slack: SlackPlatform, tmp_path: Path) -> None:
    bob = slack.user_id("bob")
    async with connected(slack, tmp_path) as gateway:
        await slack.say(f"ask <@{bob}> about &lt;b&gt; in <#C1|general>", room=True, mention=True)
        await slack.posts(1, chat="room")
        [asked] = await shown(gateway, IN_ROOM)
        assert "Ann" in asked and "room" in asked
        assert "ask @Bob about <b> in #general" in asked


async def test_a_name_is_looked_up_once_and_few_are_kept(
    slack: SlackPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "MAX_KEPT", 2)
    async with connected(slack, tmp_path):
        for person in ("ann", "ann", "bob", "ann", "cid", "ann"):
            before = len(slack.fake.sent(slack.fake.dm_of(slack.user_id(person))))
            await slack.say("hello", sender=person)
            await slack.posts(before + 1, chat=person)
        asked = [arguments["user"] for method, arguments in slack.fake.calls if method == "users.info"]
        assert asked == ["U0ANN", "U0BOB", "U0CID", "U0ANN"]


async def test_a_message_does_not_wait_for_names_that_cannot_be_looked_up(
    slack: SlackPlatform, tmp_path: Path
) -> None:
    slack.fake.scopes.discard("users:read")
    slack.fake.limit_next("conversations.info", 60)
    async with connected(slack, tmp_path):
        await slack.say("hello", room=True, mention=True)
        assert len(await slack.posts(1, chat="room")) == 1


@pytest.mark.promise("slack.threads")
async def test_a_thread_of_a_channel_is_a_session_and_is_answered_there(
    slack: SlackPlatform, tmp_path: Path
) -> None:
    thread = await slack.open_thread()
    async with connected(slack, tmp_path) as gateway:
        await slack.say("hello", room=True, mention=True, thread=thread)
        [post] = await slack.posts(1, chat="room")
        assert post.thread == thread
        session = await gateway.store.read(sessions.get, f"{IN_ROOM}:thread:{thread}")
        assert (session.last_to, session.last_thread_id) == (f"channel:{ROOM}", thread)


@pytest.mark.promise("slack.threads")
async def test_a_thread_of_a_direct_conversation_belongs_to_its_session(
    slack: SlackPlatform, tmp_path: Path
) -> None:
    async with connected(slack, tmp_path) as gateway:
        thread = await slack.say("first")
        await slack.posts(1, chat="ann")
        await slack.say("second", thread=thread)
        posts = await slack.posts(2, chat="ann")
        assert [post.thread for post in posts] == [None, thread]
        assert await texts(gateway, MAIN, "user") == ["first", "second"]


async def test_a_reply_in_a_thread_that_the_bot_began_needs_no_mention(
    slack: SlackPlatform, tmp_path: Path
) -> None:
    async with connected(slack, tmp_path):
        await slack.say("hello", room=True, mention=True)
        [post] = await slack.posts(1, chat="room")
        await slack.say("go on", room=True, thread=post.id)
        posts = await slack.posts(2, chat="room")
        assert posts[1].thread == post.id


async def test_own_messages_edits_and_notices_start_nothing(slack: SlackPlatform, tmp_path: Path) -> None:
    async with connected(slack, tmp_path, **slack.group_rules({"requireMention": False})) as gateway:
        ann = slack.user_id("ann")
        own = {"type": "message", "channel": ROOM, "channel_type": "channel"}
        await slack.fake.event(own | {"user": BOT_USER, "text": "mine", "ts": "1.000001"})
        await slack.fake.event(own | {"bot_id": BOT_ID, "text": "mine too", "ts": "1.000002"})
        for subtype in ("message_changed", "message_deleted", "channel_join", "message_replied"):
            event = {"subtype": subtype, "user": ann, "text": subtype, "ts": "1.000003"}
            await slack.fake.event(own | event)
        await slack.say("real", room=True)
        await slack.posts(1, chat="room")
        await slack.fake.until(lambda: not slack.fake.unanswered)
        [asked] = await texts(gateway, IN_ROOM, "user")
        assert "real" in asked


@pytest.mark.parametrize(
    "event",
    [
        {"type": "message"},
        {"type": "message", "channel": 5, "ts": [], "user": {}},
        {"type": "message", "channel": ROOM, "user": "U0ANN", "ts": "yesterday", "text": "x"},
        {"type": "message", "channel": ROOM, "user": "U0ANN", "ts": "1.1", "text": {"a": 1}},
        {"type": "message", "channel": ROOM, "user": "U0ANN", "ts": "1.1", "files": [7, {"name": 8}]},
        {"type": "something_new", "item": None},
    ],
)
async def test_a_malformed_event_is_acknowledged_and_skipped(
    slack: SlackPlatform, tmp_path: Path, event: dict[str, Any]
) -> None:
    async with connected(slack, tmp_path):
        await slack.fake.event(event)
        await slack.say("hello")
        await slack.posts(1, chat="ann")
        await slack.fake.until(lambda: not slack.fake.unanswered)
        assert slack.fake.opened == 1


@pytest.mark.parametrize(
    "frame",
    ["nonsense", "[]", "7", '{"type":"x","a":' + "[" * 5000 + "]" * 5000 + "}", '{"type":"slash_commands"}'],
)
async def test_a_frame_that_is_no_envelope_is_skipped(
    slack: SlackPlatform, tmp_path: Path, frame: str
) -> None:
    async with connected(slack, tmp_path):
        await slack.fake.raw_frame(frame)
        await slack.say("hello")
        await slack.posts(1, chat="ann")
        assert slack.fake.opened == 1


async def test_a_frame_that_is_too_large_ends_the_connection_and_a_new_one_is_made(
    slack: SlackPlatform, tmp_path: Path
) -> None:
    async with connected(slack, tmp_path):
        await slack.fake.raw_frame('{"type":"x","a":"' + "y" * 5_000_000 + '"}')
        await slack.fake.until(lambda: slack.fake.opened == 2)
        await slack.say("hello")
        await slack.posts(1, chat="ann")


@pytest.mark.promise("slack.reconnects")
@pytest.mark.parametrize("reason", ["warning", "refresh_requested"])
async def test_a_new_connection_is_open_before_the_old_one_is_closed(
    slack: SlackPlatform, tmp_path: Path, reason: str
) -> None:
    async with connected(slack, tmp_path) as gateway:
        await slack.fake.ask_to_reconnect(reason)
        await slack.fake.until(lambda: slack.fake.opened == 2)
        assert slack.fake.most_connections == 2
        await slack.say("hello")
        await slack.posts(1, chat="ann")
        [status] = gateway.chats.statuses()
        assert (status.state, status.reconnects) == ("connected", 0)


@pytest.mark.promise("slack.catches_up")
async def test_what_was_written_without_a_connection_is_asked_for(
    slack: SlackPlatform, tmp_path: Path
) -> None:
    async with connected(slack, tmp_path):
        thread = await slack.say("topic", room=True, mention=True)
        await slack.posts(1, chat="room")
        await slack.say("in the thread", room=True, mention=True, thread=thread)
        await slack.posts(2, chat="room")
        await slack.say("before")
        await slack.posts(1, chat="ann")
        await slack.fake.until(lambda: not slack.fake.unanswered)
    slack.fake.deaf = True  # Slack has given up sending these
    await slack.say("meanwhile")
    await slack.say("meanwhile, too", room=True, mention=True, thread=thread)
    slack.fake.deaf = False
    async with connected(slack, tmp_path) as gateway:
        await slack.posts(2, chat="ann")
        posts = await slack.posts(3, chat="room")
        assert posts[2].thread == thread
        assert await texts(gateway, MAIN, "user") == ["before", "meanwhile"]


@pytest.mark.promise("slack.refusals", "slack.tokens")
async def test_a_revoked_token_stops_the_account_with_what_to_do(
    slack: SlackPlatform, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with connected(slack, tmp_path) as gateway:
            slack.fake.revoked = "token_revoked"
            await slack.stop()
            await slack.start()
            await until(lambda: gateway.chats.statuses()[0].state == "stopped")
            [status] = gateway.chats.statuses()
            assert status.last_error is not None and status.last_error.startswith("channels.slack.botToken")
            assert "install the app again" in status.last_error
    assert BOT_TOKEN not in caplog.text and APP_TOKEN not in caplog.text and "ticket-" not in caplog.text


@pytest.mark.promise("slack.tokens")
@pytest.mark.parametrize("how", ["refused", "dropped"])
async def test_the_address_of_a_connection_that_fails_is_in_no_log(
    slack: SlackPlatform, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: Literal["refused", "dropped"]
) -> None:
    slack.fake.closed_links = how
    async with rehearse(tmp_path, settings(slack)) as gateway:
        await until(lambda: gateway.chats.statuses()[0].state == "reconnecting")
        slack.fake.closed_links = ""
        await slack.fake.until(lambda: slack.fake.opened)
    assert "disconnected" in caplog.text
    assert "ticket-" not in caplog.text


async def test_socket_mode_that_is_switched_off_stops_the_account(
    slack: SlackPlatform, tmp_path: Path
) -> None:
    async with connected(slack, tmp_path) as gateway:
        await slack.fake.ask_to_reconnect("link_disabled")
        await until(lambda: gateway.chats.statuses()[0].state == "stopped")
        assert "Socket Mode" in (gateway.chats.statuses()[0].last_error or "")


async def test_a_wrong_app_token_is_named(slack: SlackPlatform, tmp_path: Path) -> None:
    async with rehearse(tmp_path, settings(slack, appToken="xapp-1-other")) as gateway:
        await until(lambda: "channels.slack.appToken" in (gateway.chats.statuses()[0].last_error or ""))
        assert gateway.chats.statuses()[0].state == "stopped"
        _, problem = await gateway.chats.probe("slack")
        assert problem is not None and "appToken" in problem


# sending


@pytest.mark.promise("slack.receipts")
async def test_an_answer_whose_receipt_was_lost_is_found_and_not_sent_again(
    slack: SlackPlatform, tmp_path: Path
) -> None:
    async with connected(slack, tmp_path, "Once.") as gateway:
        slack.lose_receipt_once()
        await slack.say("hello")
        delivery = await delivered(gateway, MAIN)
        [post] = await slack.posts(1, chat="ann")
        assert (delivery.state, delivery.part_ids) == ("delivered", f'["{post.id}"]')


async def test_an_answer_in_a_thread_is_found_among_its_replies(slack: SlackPlatform, tmp_path: Path) -> None:
    async with connected(slack, tmp_path) as gateway:
        thread = await slack.open_thread()
        part = Outgoing(key="k1", address=Address(f"channel:{ROOM}", thread), text="hello")
        channel = channel_of(gateway)
        assert await channel.find(part) is None
        for number in range(250):  # more than a page of Slack
            await channel.send(Outgoing(key=f"other {number}", address=part.address, text="x"))
        ts = await channel.send(part)
        assert await channel.find(part) == ts


async def test_a_search_that_does_not_reach_the_end_proves_nothing(
    slack: SlackPlatform, tmp_path: Path
) -> None:
    async with connected(slack, tmp_path) as gateway:
        for _ in range(1001):
            slack.fake.messages[ROOM].append(
                {"type": "message", "user": "U0X", "text": "x", "ts": slack.fake.ts()}
            )
        with pytest.raises(Exception, match="too many messages"):
            await channel_of(gateway).find(Outgoing(key="k1", address=TO_ROOM, text="hello"))


@pytest.mark.promise("slack.receipts")
async def test_a_file_whose_receipt_was_lost_is_found_by_another_process(
    slack: SlackPlatform, tmp_path: Path
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("content")
    part = Outgoing(key="k1", address=TO_ROOM, text="Here", file=OutgoingFile(path=notes, name="notes.txt"))
    async with connected(slack, tmp_path) as gateway:
        assert await channel_of(gateway).find(part) is None
        slack.fake.lose_receipts["files.completeUploadExternal"] = 1
        with pytest.raises(Exception, match="connection was lost"):
            await channel_of(gateway).send(part)
    async with connected(slack, tmp_path) as gateway:
        [post] = await slack.posts(1, chat="room")
        assert (post.text, post.file) == ("Here", b"content")
        assert await channel_of(gateway).find(part) == post.id


@pytest.mark.promise("slack.limits")
async def test_a_rate_limit_delays_an_answer_and_is_no_attempt(slack: SlackPlatform, tmp_path: Path) -> None:
    async with connected(slack, tmp_path) as gateway:
        slack.limit_once(1)
        await slack.say("hello")
        await slack.posts(1, chat="ann")
        delivery = await delivered(gateway, MAIN)
        assert (delivery.state, delivery.attempts) == ("delivered", 1)


@pytest.mark.promise("slack.limits")
async def test_the_time_of_a_rate_limit_is_passed_on(slack: SlackPlatform, tmp_path: Path) -> None:
    async with connected(slack, tmp_path) as gateway:
        slack.limit_once(37)
        with pytest.raises(NotNow) as limited:
            await channel_of(gateway).send(Outgoing(key="k1", address=TO_ROOM, text="hello"))
        assert (limited.value.after_s, limited.value.scope) == (37, "chat")


@pytest.mark.promise("slack.refusals")
async def test_a_missing_scope_fails_the_answer_and_is_named(slack: SlackPlatform, tmp_path: Path) -> None:
    async with connected(slack, tmp_path) as gateway:
        slack.fake.scopes.discard("chat:write")
        await slack.say("hello")
        delivery = await delivered(gateway, MAIN)
        assert delivery.state == "failed"
        assert "lacks the scope chat:write" in delivery.error and "reinstall" in delivery.error


@pytest.mark.parametrize(
    "garbage", [(200, "<html>oops</html>"), (502, "Bad gateway"), (200, "[1]"), (200, "")]
)
async def test_an_answer_of_slack_that_makes_no_sense_is_settled_by_looking(
    slack: SlackPlatform, tmp_path: Path, garbage: tuple[int, str]
) -> None:
    async with connected(slack, tmp_path) as gateway:
        slack.fake.garbage_next("chat.postMessage", *garbage)
        await slack.say("hello")
        assert (await delivered(gateway, MAIN)).state == "delivered"
        assert len(slack.fake.sent(slack.fake.dm_of(slack.user_id("ann")))) == 1


async def test_a_message_can_be_changed_deleted_and_reacted_to(slack: SlackPlatform, tmp_path: Path) -> None:
    async with connected(slack, tmp_path) as gateway:
        channel = channel_of(gateway)
        ts = await channel.send(Outgoing(key="k1", address=TO_ROOM, text="draft"))
        await channel.edit(TO_ROOM, ts, "**final**")
        await channel.react(TO_ROOM, ts, "👀")
        await channel.react(TO_ROOM, ts, ":eyes:")  # is there already
        [message] = slack.fake.sent(ROOM)
        assert (message["text"], [r["name"] for r in message["reactions"]]) == ("*final*", ["eyes"])
        await channel.react(TO_ROOM, ts, None)
        assert message["reactions"] == []
        await channel.delete(TO_ROOM, ts)
        await channel.delete(TO_ROOM, ts)  # is gone already
        assert slack.fake.sent(ROOM) == []


async def test_a_person_is_reached_without_having_written(slack: SlackPlatform, tmp_path: Path) -> None:
    ann = slack.user_id("ann")
    async with connected(slack, tmp_path) as gateway:
        await channel_of(gateway).send(Outgoing(key="k1", address=Address(f"user:{ann}"), text="hello"))
        await channel_of(gateway).send(Outgoing(key="k2", address=Address(ann), text="again"))
        assert [post.text for post in await slack.posts(2, chat="ann")] == ["hello", "again"]
        assert [method for method, _ in slack.fake.calls].count("conversations.open") == 1


async def test_a_thread_is_opened_in_a_channel_and_not_in_a_direct_conversation(
    slack: SlackPlatform, tmp_path: Path
) -> None:
    to_ann = Address(f"user:{slack.user_id('ann')}")
    async with connected(slack, tmp_path) as gateway:
        channel = channel_of(gateway)
        thread = await channel.open_thread(TO_ROOM, "Research", None)
        assert [m["ts"] for m in slack.fake.sent(ROOM)] == [thread]
        assert await channel.can_open_thread(TO_ROOM) is None
        assert "in a channel" in (await channel.can_open_thread(to_ann) or "")
        with pytest.raises(Undeliverable, match="in a channel"):
            await channel.open_thread(to_ann, "Research", None)


# files of messages


async def test_a_file_that_slack_does_not_give_out_is_named_to_the_agent(
    slack: SlackPlatform, tmp_path: Path
) -> None:
    async with connected(slack, tmp_path) as gateway:
        slack.fake.withhold_files = True
        await slack.say("look", file=("picture.png", b"\x89PNG\r\n\x1a\nxx"))
        await slack.posts(1, chat="ann")
        [asked] = await shown(gateway, MAIN)
        assert "media unavailable" in asked and "files:read" in asked


@pytest.mark.promise("slack.tokens")
@pytest.mark.parametrize(
    "url",
    [
        "http://files.slack.com/a",
        "https://slack.com.example.org/a",
        "https://example.org/slack.com",
        "https://evilslack.com/a",
    ],
)
async def test_the_token_is_sent_to_slack_only(slack: SlackPlatform, tmp_path: Path, url: str) -> None:
    async with connected(slack, tmp_path) as gateway:
        with pytest.raises(Undeliverable, match="the token is not sent there"):
            async for _ in channel_of(gateway).fetch(Media(ref=url), 1000):
                pass


async def test_a_file_larger_than_it_claims_is_not_read_to_its_end(
    slack: SlackPlatform, tmp_path: Path
) -> None:
    async with connected(slack, tmp_path) as gateway:
        [file] = [slack.fake.new_file("a.txt", b"x" * 100_000)]
        with pytest.raises(Undeliverable, match="larger than"):
            async for _ in channel_of(gateway).fetch(Media(ref=file["url_private"], size=3), 1000):
                pass
