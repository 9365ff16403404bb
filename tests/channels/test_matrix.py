"""The Matrix channel in a real gateway, against Synapse."""

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.channels.matrix_platform import CLIENT, MatrixPlatform, escaped
from tests.integration.helpers import texts
from tests.waiting import LIMIT_S, until

from hobnob.channels import Channel, NotNow, Outgoing, OutgoingFile, Undeliverable
from hobnob.chats.accounts import Status
from hobnob.gateway import Gateway
from hobnob.inbound import Address, Inbound, Media
from hobnob.store import deliveries, sessions
from hobnob.testing import rehearse, script

MAIN = "agent:main:main"
OPEN = {"dmPolicy": "open", "allowFrom": ["*"], "ackReaction": "", "streaming": {"mode": "off"}}
pytestmark = pytest.mark.timeout(180)  # the first test of a process starts the homeserver


@pytest.fixture
async def matrix() -> AsyncIterator[MatrixPlatform]:
    platform = MatrixPlatform()
    await platform.start()
    yield platform
    await platform.stop()


@asynccontextmanager
async def serving(home: Path, matrix: dict[str, Any], *answers: Any) -> AsyncIterator[Gateway]:
    answered = script(*answers, session="*") if answers else {}
    async with rehearse(home, {"channels": {"matrix": matrix}} | answered) as gateway:
        yield gateway


@asynccontextmanager
async def connected(matrix: MatrixPlatform, home: Path, *answers: Any, **more: Any) -> AsyncIterator[Gateway]:
    """A gateway that receives messages. Everybody may write to the bot."""
    async with serving(home, matrix.settings() | matrix.group_rules({}) | OPEN | more, *answers) as gateway:
        await until(lambda: status(gateway).state == "connected")
        yield gateway


def status(gateway: Gateway) -> Status:
    found = gateway.chats.accounts.statuses()
    return found[0] if found else Status("matrix", "default")


def channel_of(gateway: Gateway) -> Channel:
    found = gateway.chats.accounts.find("matrix", None)
    assert found is not None
    return found


async def delivered(gateway: Gateway, key: str) -> Any:
    """The newest delivery of a session, once it is settled."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await gateway.store.read(deliveries.of_session, key)
            if found and found[0].state not in ("pending", "sending"):
                return found[0]
            await asyncio.sleep(0.02)


async def received(gateway: Gateway) -> list[Inbound]:
    """The messages that were let in, newest first."""
    found = await gateway.chats.messages(limit=100)
    return [Inbound.from_json(message.body) for message in found if message.body]


def room_key(matrix: MatrixPlatform) -> str:
    return f"agent:main:matrix:channel:{matrix.room_id().lower()}"


# messages


async def test_an_invitation_is_accepted_and_a_direct_message_answered(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    async with connected(matrix, tmp_path, "**Hello** Ann.") as gateway:
        await matrix.say("hi there")
        [post] = await matrix.posts(1, chat="ann")
        assert post.text == "**Hello** Ann."
        room = await matrix.direct_room("ann")
        [event] = await matrix.events("ann", room)
        assert event["content"]["formatted_body"] == "<strong>Hello</strong> Ann."
        session = await gateway.store.read(sessions.get, MAIN)
        assert session.last_to == room  # as the homeserver spells it
        direct = f"{CLIENT}/user/{escaped(matrix.user_id('bot'))}/account_data/m.direct"
        assert await matrix.call("bot", "GET", direct) == {matrix.user_id("ann"): [room]}


async def test_what_was_said_before_the_bot_had_joined_is_answered(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    invited = {"preset": "trusted_private_chat", "is_direct": True, "invite": [matrix.user_id("bot")]}
    old = await matrix.new_room("ann", preset="trusted_private_chat")
    await matrix.post("ann", old, {"msgtype": "m.text", "body": "before the invitation"})
    await matrix.call(
        "ann", "POST", f"{CLIENT}/rooms/{escaped(old)}/invite", {"user_id": matrix.user_id("bot")}
    )
    await matrix.post("ann", old, {"msgtype": "m.text", "body": "after the invitation"})
    async with connected(matrix, tmp_path) as gateway:
        new = await matrix.new_room("ann", **invited)
        await matrix.post("ann", new, {"msgtype": "m.text", "body": "in a new room"})

        async def both() -> bool:
            return bool(await matrix.events("ann", new)) and bool(await matrix.events("ann", old))

        await matrix.until("ann", both)
        assert sorted(await texts(gateway, MAIN, "user")) == ["after the invitation", "in a new room"]


@pytest.mark.parametrize("auto_join", ["off", "allowlist"])
async def test_an_invitation_that_the_settings_do_not_accept_is_left_alone(
    auto_join: str, matrix: MatrixPlatform, tmp_path: Path
) -> None:
    listed = [matrix.user_id("bob")] if auto_join == "allowlist" else []
    async with connected(matrix, tmp_path, autoJoin=auto_join, autoJoinAllowlist=listed) as gateway:
        room = await matrix.new_room("ann", invite=[matrix.user_id("bot")])
        if listed:
            await matrix.say("hello", sender="bob")
            await matrix.posts(1, chat="bob")
        await matrix.say("hello", room=True, mention=True)
        await matrix.posts(1, chat="room")
        members = await matrix.call("ann", "GET", f"{CLIENT}/rooms/{escaped(room)}/joined_members")
        assert matrix.user_id("bot") not in members["joined"]
        assert status(gateway).state == "connected"


async def test_a_message_in_a_room_is_answered_if_it_mentions_the_bot(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    async with connected(matrix, tmp_path, "Here.") as gateway:
        await matrix.say("nobody in particular", room=True)
        await matrix.say("are you there?", room=True, mention=True)
        await matrix.posts(1, chat="room")
        assert await texts(gateway, room_key(matrix), "user") == ["are you there?"]


async def test_a_room_of_two_is_a_group_if_the_settings_list_it(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    room = await matrix.new_room("ann", name="Two", invite=[matrix.user_id("bot")])
    async with connected(matrix, tmp_path, "Yes.", groups={room: {"requireMention": False}}) as gateway:
        await matrix.post("ann", room, {"msgtype": "m.text", "body": "hello"})
        key = f"agent:main:matrix:channel:{room.lower()}"
        assert (await delivered(gateway, key)).recipient == room
        assert (await gateway.store.read(sessions.get, key)).display_name == "Two"


async def test_a_thread_has_a_session_of_its_own_and_is_answered_there(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    async with connected(matrix, tmp_path, "In the thread.") as gateway:
        thread = await matrix.open_thread()
        await matrix.say("here?", room=True, mention=True, thread=thread)
        [post] = await matrix.posts(1, chat="room")
        assert (post.text, post.thread) == ("In the thread.", thread)
        assert (await delivered(gateway, f"{room_key(matrix)}:thread:{thread.lower()}")).thread_id == thread


@pytest.mark.parametrize("mode", ["always", "off"])
async def test_the_settings_can_put_every_answer_into_a_thread_or_none(
    mode: str, matrix: MatrixPlatform, tmp_path: Path
) -> None:
    async with connected(matrix, tmp_path, threadReplies=mode):
        thread = await matrix.open_thread() if mode == "off" else None
        message = await matrix.say("hello", room=True, mention=True, thread=thread)
        [post] = await matrix.posts(1, chat="room")
        assert post.thread == (message if mode == "always" else None)


async def test_a_reply_to_the_bot_counts_as_a_mention_and_shows_what_it_answers(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    async with connected(matrix, tmp_path, "It is *blue*.", "Because.") as gateway:
        await matrix.say("which colour?", room=True, mention=True)
        [post] = await matrix.posts(1, chat="room")
        await matrix.say("> <@bot> It is blue.\n\nwhy?", room=True, reply_to=post.id)
        await matrix.posts(2, chat="room")
        [second, *_] = await received(gateway)
        assert second.text == "why?"
        assert second.quote and (second.quote.text, second.quote.own) == ("It is *blue*.", True)


async def test_edits_reactions_and_own_messages_start_nothing(matrix: MatrixPlatform, tmp_path: Path) -> None:
    async with connected(matrix, tmp_path) as gateway:
        first = await matrix.say("first")
        room = await matrix.direct_room("ann")
        new = {"msgtype": "m.text", "body": "edited"}
        edit = {"rel_type": "m.replace", "event_id": first}
        await matrix.post("ann", room, {**new, "m.new_content": new, "m.relates_to": edit})
        thumb = {"rel_type": "m.annotation", "event_id": first, "key": "x"}
        await matrix.post("ann", room, {"m.relates_to": thumb}, "m.reaction")
        await matrix.post("bot", room, {"msgtype": "m.text", "body": "my own"})
        await matrix.say("second")
        await matrix.posts(3, chat="ann")
        assert await texts(gateway, MAIN, "user") == ["first", "second"]


async def test_a_notice_is_a_message_of_a_bot(matrix: MatrixPlatform, tmp_path: Path) -> None:
    async with connected(matrix, tmp_path) as gateway:
        room = await matrix.direct_room("ann")
        await matrix.post("ann", room, {"msgtype": "m.notice", "body": "from a bot"})
        await matrix.say("from ann")
        await matrix.posts(1, chat="ann")
        assert await texts(gateway, MAIN, "user") == ["from ann"]


# catching up


@pytest.mark.promise("matrix.missed_messages_arrive")
async def test_messages_of_a_time_without_the_gateway_arrive_in_order(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    async with connected(matrix, tmp_path, groups={matrix.room_id(): {"requireMention": False}}) as gateway:
        await matrix.say("before", room=True)
        await delivered(gateway, room_key(matrix))
    said = [await matrix.say(f"missed {number}", room=True) for number in range(70)]  # more than a sync has
    async with connected(matrix, tmp_path) as gateway:
        await matrix.say("the last one", room=True, mention=True)
        await matrix.posts(2, chat="room")
        stored = [message.event_id for message in await gateway.chats.messages(limit=100)]
        assert [event_id for event_id in reversed(stored) if event_id in said] == said


async def test_nothing_is_answered_that_was_said_before_the_first_start(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    await matrix.say("long ago", room=True, mention=True)
    async with connected(matrix, tmp_path) as gateway:
        await matrix.say("now", room=True, mention=True)
        await matrix.posts(1, chat="room")
        assert await texts(gateway, room_key(matrix), "user") == ["now"]


async def test_the_bot_comes_back_after_the_homeserver_was_killed(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    async with connected(matrix, tmp_path) as gateway:
        matrix.server.kill()
        await until(lambda: status(gateway).state == "reconnecting")
        await matrix.start()
        await matrix.say("hello again", room=True, mention=True)
        await matrix.posts(1, chat="room")


# sending


@pytest.mark.promise("matrix.sent_once")
async def test_the_same_part_sent_again_is_one_message(matrix: MatrixPlatform, tmp_path: Path) -> None:
    part = Outgoing(key="a/b:0", address=Address(matrix.room_id()), text="once")
    async with connected(matrix, tmp_path) as gateway:
        first = await channel_of(gateway).send(part)
        matrix.server.kill()
        await matrix.start()
        assert await channel_of(gateway).send(part) == first
        assert [post.text for post in await matrix.posts(1, chat="room")] == ["once"]


@pytest.mark.promise("matrix.sent_once")
async def test_a_lost_receipt_leads_to_one_message(matrix: MatrixPlatform, tmp_path: Path) -> None:
    async with connected(matrix, tmp_path, "Once.", "Twice.") as gateway:
        matrix.lose_receipt_once()
        await matrix.say("hello", room=True, mention=True)
        assert (await delivered(gateway, room_key(matrix))).state == "delivered"
        await matrix.say("and again", room=True, mention=True)
        assert [post.text for post in await matrix.posts(2, chat="room")] == ["Once.", "Twice."]


async def test_a_rate_limit_tells_how_long_to_wait(matrix: MatrixPlatform, tmp_path: Path) -> None:
    async with connected(matrix, tmp_path) as gateway:
        matrix.limit_once(30)
        with pytest.raises(NotNow) as limit:
            await channel_of(gateway).send(Outgoing(key="1", address=Address(matrix.room_id()), text="now"))
        assert (10 < limit.value.after_s <= 32) and limit.value.scope == "account"


async def test_a_message_is_edited_reacted_to_and_deleted(matrix: MatrixPlatform, tmp_path: Path) -> None:
    async with connected(matrix, tmp_path) as gateway:
        channel, room = channel_of(gateway), Address(matrix.room_id())
        message = await channel.send(Outgoing(key="1", address=room, text="a draft"))
        await channel.edit(room, message, "the answer")
        await channel.typing(room)
        assert [post.text for post in await matrix.posts(1, chat="room")] == ["the answer"]
        question = await matrix.say("a question", room=True)
        await channel.react(room, question, "👀")
        await channel.react(room, question, "✅")
        assert await reactions(matrix, question) == ["✅"]
        await channel.react(room, question, None)
        assert await reactions(matrix, question) == []
        await channel.delete(room, message)
        await channel.send(Outgoing(key="2", address=room, text="the end"))
        assert [post.text for post in await matrix.posts(1, chat="room")] == ["the end"]


async def test_a_reaction_from_before_a_restart_can_be_removed(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    question, room = await matrix.say("a question", room=True), Address(matrix.room_id())
    async with connected(matrix, tmp_path) as gateway:
        await channel_of(gateway).react(room, question, "👀")
    async with connected(matrix, tmp_path) as gateway:
        await channel_of(gateway).react(room, question, None)
        assert await reactions(matrix, question) == []


async def reactions(matrix: MatrixPlatform, message: str) -> list[str]:
    path = f"/_matrix/client/v1/rooms/{escaped(matrix.room_id())}/relations/{escaped(message)}/m.annotation"
    found = (await matrix.call("ann", "GET", path))["chunk"]
    return [event["content"]["m.relates_to"]["key"] for event in found]


async def test_a_thread_is_opened_with_a_message_of_its_own(matrix: MatrixPlatform, tmp_path: Path) -> None:
    async with connected(matrix, tmp_path) as gateway:
        thread = await channel_of(gateway).open_thread(Address(matrix.room_id()), "A task", None)
        into = Outgoing(key="1", address=Address(matrix.room_id(), thread), text="done")
        await channel_of(gateway).send(into)
        root, post = await matrix.posts(2, chat="room")
        assert (root.text, post.thread) == ("A task", root.id)


async def test_a_message_to_a_room_that_does_not_exist_has_failed(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    async with connected(matrix, tmp_path) as gateway:
        for room in ("!nowhere:example.org", "#alias:example.org", "../admin", ""):
            with pytest.raises(Undeliverable) as refused:
                await channel_of(gateway).send(Outgoing(key="1", address=Address(room), text="hello"))
            assert not refused.value.again


# files


async def test_a_file_is_fetched_up_to_its_limit(matrix: MatrixPlatform, tmp_path: Path) -> None:
    async with connected(matrix, tmp_path) as gateway:
        content = b"x" * 100_000
        sent = await matrix.call("ann", "POST", "/_matrix/media/v3/upload", content, filename="a.txt")
        media = Media(ref=sent["content_uri"])
        channel = channel_of(gateway)
        assert b"".join([chunk async for chunk in channel.fetch(media, 100_000)]) == content
        with pytest.raises(Undeliverable, match="larger"):
            _ = [chunk async for chunk in channel.fetch(media, 99_999)]
        for ref in ("mxc://example.org/../../admin", "https://example.org/x", "mxc://example.org/none"):
            with pytest.raises(Undeliverable):
                _ = [chunk async for chunk in channel.fetch(Media(ref=ref), 10)]


async def test_a_file_with_a_caption_reaches_the_agent(matrix: MatrixPlatform, tmp_path: Path) -> None:
    async with connected(matrix, tmp_path) as gateway:
        await matrix.say("look at this", file=("notes.txt", b"the content"))
        await matrix.posts(1, chat="ann")
        [turn] = await texts(gateway, MAIN, "user")
        assert turn.startswith("look at this")
        [saved] = [path for path in tmp_path.rglob("*notes*") if path.is_file()]
        assert saved.read_bytes() == b"the content"


async def test_a_file_is_sent_with_its_caption_and_one_too_large_is_refused(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    small, large = tmp_path / "small.png", tmp_path / "large.png"
    small.write_bytes(b"an image")
    large.write_bytes(b"x" * 1_100_000)  # the homeserver takes 1 MB
    async with connected(matrix, tmp_path) as gateway:
        to = Address(matrix.room_id())
        file = OutgoingFile(path=small, name="small.png", mime_type="image/png")
        await channel_of(gateway).send(Outgoing(key="1", address=to, text="see", file=file))
        [post] = await matrix.posts(1, chat="room")
        assert (post.text, post.file) == ("see", b"an image")
        file = OutgoingFile(path=large, name="large.png", mime_type="image/png")
        with pytest.raises(Undeliverable, match="M_TOO_LARGE"):
            await channel_of(gateway).send(Outgoing(key="2", address=to, file=file))


# signing in


def with_password(matrix: MatrixPlatform) -> dict[str, Any]:
    return {
        "homeserver": f"{matrix.url}/",
        "userId": matrix.user_id("bot"),
        "password": "password",
        **matrix.group_rules({}),
        **OPEN,
    }


@pytest.mark.promise("matrix.login_kept_private")
async def test_a_password_is_used_once_and_the_token_kept_private(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    devices: list[str] = []
    for _ in range(2):
        async with serving(tmp_path, with_password(matrix)) as gateway:
            await until(lambda gateway=gateway: status(gateway).state == "connected")
            devices.append(status(gateway).identity.detail)
    assert devices[0] == devices[1]
    kept = tmp_path / "channels" / "matrix" / "default" / "login.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "password" not in kept.read_text()


async def test_a_session_that_was_ended_elsewhere_stops_the_account_until_the_next_start(
    matrix: MatrixPlatform, tmp_path: Path
) -> None:
    async with serving(tmp_path, with_password(matrix)) as gateway:
        await until(lambda: status(gateway).state == "connected")
        await matrix.call("bot", "POST", f"{CLIENT}/logout/all", {})
        await until(lambda: "M_UNKNOWN_TOKEN" in str(status(gateway).last_error))
        assert status(gateway).state == "stopped"
    async with serving(tmp_path, with_password(matrix)) as gateway:
        await until(lambda: status(gateway).state == "connected")


async def test_logging_out_ends_the_session(matrix: MatrixPlatform, tmp_path: Path) -> None:
    async with serving(tmp_path, with_password(matrix)) as gateway:
        await until(lambda: status(gateway).state == "connected")
        device = status(gateway).identity.detail.removeprefix("device ")
        await gateway.chats.logout("matrix", None)
        found = await matrix.call("bot", "GET", f"{CLIENT}/devices")
        assert device not in [each["device_id"] for each in found["devices"]]
        assert not (tmp_path / "channels" / "matrix" / "default" / "login.json").exists()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"password": "wrong-password"}, "password"),
        ({"accessToken": "wrong-token"}, "M_UNKNOWN_TOKEN"),
        ({"homeserver": "matrix.example.org"}, "homeserver"),
        ({"password": None}, "accessToken"),
    ],
)
async def test_wrong_credentials_stop_the_account_with_a_reason(
    wrong: dict[str, Any], why: str, matrix: MatrixPlatform, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {name: value for name, value in (with_password(matrix) | wrong).items() if value is not None}
    async with serving(tmp_path, settings) as gateway:
        await until(lambda: why in str(status(gateway).last_error))
        assert status(gateway).state == "stopped"
    assert "wrong-password" not in caplog.text and "wrong-token" not in caplog.text
