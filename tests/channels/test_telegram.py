"""The channel telegram in a real gateway, against the fake of the Bot API: what is special to Telegram."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from tests.channels.fake_telegram import BOT, FORUM, GROUP, TOKEN, ApiError
from tests.channels.gateways import connected, deliveries_in, eventually, messages_of, settings_for, settled
from tests.channels.telegram_platform import TelegramPlatform
from tests.integration.helpers import ANN as ANN_MAIN
from tests.integration.helpers import Gate, three_agents, use
from tests.waiting import until

from hobnob.channels import Channel, Outgoing, Undeliverable
from hobnob.gateway import Gateway
from hobnob.inbound import Address, Media
from hobnob.testing import calls, exchange_ended, rehearse

ANN = Address("1001")


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramPlatform]:
    platform = TelegramPlatform()
    await platform.start()
    yield platform
    await platform.stop()


def channel_of(gateway: Gateway) -> Channel:
    found = gateway.chats.accounts.find("telegram", None)
    assert found is not None
    return found


def refusing(status: int, description: str, **parameters: Any) -> Any:
    def fail(method: str, params: dict[str, Any]) -> web.StreamResponse | None:
        raise ApiError(status, description, **parameters)

    return fail


async def test_polling_goes_on_from_the_stored_position(telegram, tmp_path):
    async with connected(telegram, tmp_path, "Hello."):
        await telegram.say("hello")
        [update] = telegram.fake.updates
        await telegram.posts(1, chat="ann")
    telegram.fake.offsets.clear()
    async with connected(telegram, tmp_path, "Hello."):
        await telegram.fake.until(lambda: telegram.fake.offsets)
    assert telegram.fake.offsets[0] == update["update_id"] + 1


async def test_an_answer_to_the_general_topic_names_no_topic_but_typing_does(telegram, tmp_path):
    gate = Gate()
    async with connected(telegram, tmp_path, calls("hold"), "Hello.", tools=(gate.tool,)):
        await telegram.say("hello", room=True, mention=True)
        await telegram.fake.until(lambda: telegram.fake.actions)
        gate.open.set()
        [answer] = await telegram.posts(1, chat="room")
    assert (answer.text, answer.thread) == ("Hello.", None)
    assert telegram.fake.actions[0]["message_thread_id"] == 1


async def test_an_album_in_a_group_is_one_message_with_the_mention_of_its_caption(telegram, tmp_path):
    name = f"@{BOT['username']}"
    async with connected(telegram, tmp_path, "Nice.", groups={str(GROUP): {}}) as gateway:
        for number in range(3):
            about = {"file_id": telegram.fake.add_file(b"x"), "file_unique_id": "u", "width": 1, "height": 1}
            mention = [{"type": "mention", "offset": 0, "length": len(name)}]
            caption = {"caption": f"{name} look", "caption_entities": mention} if number == 0 else {}
            sender = telegram.fake.person(1001, "Ann")
            await telegram.fake.write(sender, GROUP, photo=[about], media_group_id="7", **caption)
        await telegram.fake.until(lambda: telegram.fake.sent)
        [message] = await messages_of(gateway)
    assert message.state == "turn"


async def test_a_message_whose_markup_is_not_understood_is_sent_without(telegram, tmp_path):
    telegram.fake.failures.append(refusing(400, "Bad Request: can't parse entities: unexpected end"))
    async with connected(telegram, tmp_path, "**Hello** [there](https://example.org)"):
        await telegram.say("hello")
        [answer] = await telegram.posts(1, chat="ann")
    assert answer.text == "Hello there (https://example.org)"


async def test_answers_follow_a_group_that_got_another_id(telegram, tmp_path):
    async with connected(telegram, tmp_path, "Hello.") as gateway:
        telegram.fake.moved[-77] = FORUM
        await channel_of(gateway).send(Outgoing(key="k", address=Address("-77"), text="hi"))
        await channel_of(gateway).send(Outgoing(key="l", address=Address("-77"), text="again"))
    sends = [params["chat_id"] for method, params in telegram.fake.calls if method == "sendMessage"]
    assert sends == ["-77", str(FORUM), str(FORUM)]


async def test_a_person_who_blocked_the_bot_makes_the_delivery_fail(telegram, tmp_path):
    telegram.fake.chat(1001)["blocked"] = True
    async with connected(telegram, tmp_path, "Hello."):
        await telegram.say("hello")
        assert await settled(tmp_path, 1) == ["failed"]
        [(why,)] = deliveries_in(tmp_path, "error")
    assert "blocked by the user" in why


async def test_a_refused_token_stops_the_account_and_is_in_no_log(telegram, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "hobnob")
    telegram.fake.token = "1:other"
    async with rehearse(tmp_path, settings_for(telegram)) as gateway:
        await until(lambda: "bot token" in (gateway.chats.statuses()[0].last_error or ""))
        [status] = gateway.chats.statuses()
    assert status.state == "stopped"
    assert TOKEN not in caplog.text and TOKEN.partition(":")[2] not in (status.last_error or "")


async def test_a_second_program_that_polls_is_reported_and_outlasted(telegram, tmp_path):
    async with connected(telegram, tmp_path, "Hello.") as gateway:
        telegram.fake.webhook = "https://example.org"  # the next poll is a conflict
        await telegram.say("hello")
        await until(lambda: gateway.chats.statuses()[0].reconnects >= 1)
        await telegram.posts(1, chat="ann")


async def test_the_progress_is_shown_and_removed_when_the_answer_is_there(telegram, tmp_path):
    gate = Gate()
    steps = (calls("hold", "I am looking at this with great care right now."), "Done.")
    mode = {"streaming": {"mode": "progress"}}
    async with connected(telegram, tmp_path, *steps, tools=(gate.tool,), **mode):
        await telegram.say("hello")
        await telegram.fake.until(lambda: any("Working" in sent.text for sent in telegram.fake.sent))
        gate.open.set()
        await telegram.fake.until(lambda: [sent.text for sent in telegram.fake.sent] == ["Done."])


async def test_a_message_is_acknowledged_by_a_reaction(telegram, tmp_path):
    async with connected(telegram, tmp_path, "Hello.", ackReaction="👀"):
        number = await telegram.say("hello", room=True, mention=True)
        await telegram.fake.until(lambda: int(number) in telegram.fake.reactions)
    assert telegram.fake.reactions[int(number)] == [{"type": "emoji", "emoji": "👀"}]


async def test_a_topic_can_be_opened_only_where_the_bot_may(telegram, tmp_path):
    async with connected(telegram, tmp_path) as gateway:
        channel = channel_of(gateway)
        assert await channel.can_open_thread(Address(str(FORUM))) is None
        assert "no topics" in (await channel.can_open_thread(ANN) or "")
        telegram.fake.may_manage_topics = False
        assert "administrator" in (await channel.can_open_thread(Address(str(FORUM))) or "")


async def test_a_file_that_is_larger_than_it_says_is_not_read_to_its_end(telegram, tmp_path):
    async with connected(telegram, tmp_path) as gateway:
        media = Media(ref=telegram.fake.add_file(b"x" * 300_000), size=5)
        with pytest.raises(Undeliverable, match="larger than"):
            async for _ in channel_of(gateway).fetch(media, 100_000):
                pass


@pytest.mark.parametrize(
    "update",
    [{"message": {"chat": 5}}, {"message": "x"}, {"message": {"message_id": "x", "chat": {"type": "x"}}}],
)
async def test_an_update_that_makes_no_sense_is_skipped(telegram, tmp_path, update):
    async with connected(telegram, tmp_path, "Hello."):
        await telegram.fake.push(update)
        await telegram.say("hello")
        await telegram.posts(1, chat="ann")
        await telegram.fake.until(lambda: not telegram.fake.updates)


@pytest.mark.parametrize("text", ["word " * 20_000, "👨‍👩‍👧" * 2_000, "```py\n" + "x = 1\n" * 3_000 + "```"])
async def test_a_huge_answer_arrives_complete(telegram, tmp_path, text):
    async with connected(telegram, tmp_path, text):
        await telegram.say("hello")
        assert await settled(tmp_path, 1) == ["delivered"]
        posts = await telegram.posts(2, chat="ann")
    wanted = text.replace("```py", "").replace("```", "")
    assert "".join("".join(post.text for post in posts).split()) == "".join(wanted.split())


async def test_the_token_may_be_in_a_file(telegram, tmp_path):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    async with connected(telegram, tmp_path, botToken=None, tokenFile=str(tmp_path / "token")):
        pass


async def test_a_link_to_a_file_with_a_token_is_not_followed(telegram, tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "link").symlink_to(tmp_path / "token")
    settings = settings_for(telegram, botToken=None, tokenFile=str(tmp_path / "link"))
    async with rehearse(tmp_path, settings) as gateway:
        await until(lambda: "cannot be read" in (gateway.chats.statuses()[0].last_error or ""))


async def test_an_old_position_is_not_used_because_telegram_may_count_anew(telegram, tmp_path):
    async with connected(telegram, tmp_path, "One.", "Two.") as gateway:
        await telegram.say("first")
        await telegram.posts(1, chat="ann")
        inbox = gateway.chats.accounts.inbox_of("telegram", "default")
        await inbox.accept([], f"999999 {int(time.time()) - 8 * 24 * 3600}")
    telegram.fake.offsets.clear()
    async with connected(telegram, tmp_path, "One.", "Two."):
        await telegram.say("second")
        await telegram.posts(2, chat="ann")
    assert telegram.fake.offsets[0] is None


async def _counted(gateway: Gateway, count: int) -> bool:
    return len(await messages_of(gateway)) >= count


async def test_a_person_with_the_name_of_an_owner_is_no_owner(telegram, tmp_path):
    async with connected(telegram, tmp_path, "Hello.", owners=[telegram.user_id("bob")]) as gateway:
        eve = telegram.fake.person(1003, "Bob", username="bob")
        await telegram.fake.write(eve, 1003, text="/status")
        await eventually(lambda: _counted(gateway, 1))
        [message] = await messages_of(gateway)
    assert (message.state, message.code) == ("refused", "command.not_owner")


# --- Between agents

BOB_IN_ROOM = f"agent:bob:telegram:group:{FORUM}:topic:1"


def two_agents(telegram: TelegramPlatform, **session: Any) -> dict[str, Any]:
    """Ann is the default agent; Bob answers in the room."""
    room = {"channel": "telegram", "peer": {"kind": "group", "id": str(FORUM)}}
    settings = three_agents() | settings_for(telegram) | {"bindings": [{"agentId": "bob", "match": room}]}
    return settings | {"session": session}


async def test_what_one_agent_tells_another_is_announced_in_his_group_and_nowhere_else(telegram, tmp_path):
    async with rehearse(tmp_path, two_agents(telegram)) as gateway:
        await telegram.say("hello", room=True, mention=True)
        await telegram.posts(1, chat="room")
        await telegram.say("hello")
        await telegram.posts(1, chat="ann")
        sent = await use(gateway, "sessions_send", ANN_MAIN, sessionKey=BOB_IN_ROOM, message="say: It is 42.")
        assert (sent["status"], sent["reply"]) == ("ok", "It is 42.")
        ended = await exchange_ended(gateway, sent["exchangeId"])
        assert ended["end"] == "delivered"
        announced = (await telegram.posts(2, chat="room"))[-1]
        assert announced.text == "It is 42."
        assert len(await telegram.posts(1, chat="ann")) == 1


async def test_a_send_policy_for_groups_keeps_agents_from_writing_to_one(telegram, tmp_path):
    rule = {"action": "deny", "match": {"channel": "telegram", "chatType": "group"}}
    settings = two_agents(telegram)
    async with rehearse(tmp_path, settings) as gateway:
        await telegram.say("hello", room=True, mention=True)
        await telegram.posts(1, chat="room")
        await settled(tmp_path, 1)
    denied = two_agents(telegram, sendPolicy={"default": "allow", "rules": [rule]})
    async with rehearse(tmp_path, denied) as gateway:
        sent = await use(gateway, "sessions_send", ANN_MAIN, sessionKey=BOB_IN_ROOM, message="say: It is 42.")
        assert sent["code"] == "send_policy.denied"
    assert len(await telegram.posts(1, chat="room")) == 1
