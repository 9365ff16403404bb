"""What every chat channel does, through a real gateway: the same tests for each platform.

A platform is a real server (Matrix, IRC) or a fake that the platform's well-known library accepts.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.channels.gateways import (
    connected,
    deliveries_in,
    eventually,
    gateway_process,
    make_platform,
    messages_of,
    platforms,
    settings_for,
    settled,
    verdicts,
)
from tests.channels.platform import Platform, Post
from tests.integration.helpers import Gate, texts, transcript
from tests.waiting import until

from hobnob import briefings
from hobnob.gateway import Gateway
from hobnob.testing import calls
from hobnob.types import text_of

CRASH_POINTS = ("before-inbox", "after-inbox", "before-end", "before-delivery", "after-delivery")
CODE = re.compile(r"\b[A-HJ-NP-Z2-9]{8}\b")
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001"
    "0001e221bc330000000049454e44ae426082"
)


@pytest.fixture(params=platforms())
async def platform(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Platform]:
    made = make_platform(request.param, tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def needs(platform: Platform, *abilities: str) -> None:
    if missing := [ability for ability in abilities if ability not in platform.can]:
        pytest.skip(f"{platform.name} has no {', '.join(missing)}")


async def said(platform: Platform, chat: str) -> list[str]:
    """What the bot has said in a chat so far."""
    return [post.text for post in await platform.posts(0, chat=chat)]


async def session_of_last_turn(gateway: Gateway) -> str:
    turns = [event.session_key for event in await messages_of(gateway) if event.state == "turn"]
    assert turns[-1] is not None
    return turns[-1]


async def last_input(gateway: Gateway) -> dict[str, Any]:
    """The last message that started a turn, in its form for the model."""
    entries = await transcript(gateway, await session_of_last_turn(gateway))
    return briefings.marked([entry for entry in entries if entry["role"] == "user"][-1])


# --- In and out


@pytest.mark.promise("channels.answered_where_it_came_from")
async def test_a_message_is_answered_where_it_came_from(platform: Platform, home: Path) -> None:
    async with connected(platform, home, "An answer."):
        await platform.say("hello")
        [answer] = await platform.posts(1, chat="ann")
        assert (answer.text, answer.thread) == ("An answer.", None)
        assert await said(platform, "room") == []
        await platform.say("hello", sender="bob", room=True, mention=True)
        [answer] = await platform.posts(1, chat="room")
        assert (answer.text, answer.thread) == ("An answer.", None)
        assert await said(platform, "ann") == ["An answer."]


@pytest.mark.promise("channels.answered_where_it_came_from")
async def test_a_message_in_a_thread_is_answered_in_the_thread(platform: Platform, home: Path) -> None:
    needs(platform, "thread")
    async with connected(platform, home, "In the thread."):
        thread = await platform.open_thread()
        await platform.say("hello", room=True, mention=True, thread=thread)
        [answer] = await platform.posts(1, chat="room")
        assert (answer.text, answer.thread) == ("In the thread.", thread)


@pytest.mark.promise("channels.once")
async def test_an_event_that_comes_twice_starts_one_turn(platform: Platform, home: Path) -> None:
    async with connected(platform, home, "One.", "Two.", "Three.") as gateway:
        message = await platform.say("first")
        await platform.posts(1, chat="ann")
        try:
            await platform.repeat(message)
        except NotImplementedError as why:
            pytest.skip(str(why))
        await platform.say("second")
        posts = await platform.posts(2, chat="ann")
        assert [post.text for post in posts] == ["One.", "Two."]
        assert await verdicts(gateway) == ["turn", "turn"]


async def test_a_long_answer_arrives_in_parts_in_order(platform: Platform, home: Path) -> None:
    words = [f"w{number:03}" for number in range(120)]
    async with connected(platform, home, " ".join(words), textChunkLimit=200):
        await platform.say("tell me")
        posts = await platform.posts(3, chat="ann")
        await settled(home, 1)
        posts = await platform.posts(3, chat="ann")
        assert max(len(post.text) for post in posts) <= 200
        assert " ".join(post.text for post in posts).split() == words


@pytest.mark.promise("channels.control_words_stay_inside")
async def test_control_words_never_reach_a_chat(platform: Platform, home: Path) -> None:
    async with connected(platform, home, "NO_REPLY", "no_reply", "REPLY_SKIP", "Hello.") as gateway:
        for count in range(1, 5):
            await platform.say(f"message {count}")
            await eventually(lambda count=count: _has_answered(gateway, count))
        assert [post.text for post in await platform.posts(1, chat="ann")] == ["Hello."]


async def _has_answered(gateway: Gateway, count: int) -> bool:
    found = await messages_of(gateway)
    if [event.state for event in found].count("turn") < count:
        return False
    return len(await texts(gateway, found[-1].session_key or "", "assistant")) >= count


@pytest.mark.promise("channels.failures_are_told")
async def test_a_turn_that_fails_is_told_where_an_answer_is_owed(platform: Platform, home: Path) -> None:
    async with connected(platform, home, {"error": "the model is down"}):
        await platform.say("hello")
        [answer] = await platform.posts(1, chat="ann")
        assert "there is no answer" in answer.text
        assert "the model is down" not in answer.text, "the reason is for owners"


# --- Access


@pytest.mark.promise("channels.pairing")
async def test_a_stranger_gets_a_code_once_and_is_let_in_by_it(platform: Platform, home: Path) -> None:
    rules = {"dmPolicy": "pairing", "allowFrom": None}
    async with connected(platform, home, "Hello.", **rules) as gateway:
        await platform.say("let me in", sender="eve")
        [request] = await platform.posts(1, chat="eve")
        code = CODE.search(request.text)
        assert code is not None
        await platform.say("please", sender="eve")
        await eventually(lambda: _received(gateway, 2))
        await gateway.chats.approve(code[0], channel=platform.name)
        await platform.posts(2, chat="eve")
        await platform.say("and now?", sender="eve")
        answers = [post.text for post in await platform.posts(3, chat="eve")]
        assert [CODE.search(text) is not None for text in answers] == [True, False, False]
        assert answers[2] == "Hello."
        assert await verdicts(gateway) == ["pairing", "refused", "turn"]


async def _received(gateway: Gateway, count: int) -> bool:
    return len(await messages_of(gateway)) >= count


@pytest.mark.promise("channels.mentions")
async def test_a_group_message_without_a_mention_is_context_of_the_next_one(
    platform: Platform, home: Path
) -> None:
    async with connected(platform, home, "Green.") as gateway:
        await platform.say("the sky is green", sender="bob", room=True)
        await platform.say("which colour?", room=True, mention=True)
        assert [post.text for post in await platform.posts(1, chat="room")] == ["Green."]
        assert [event.turn_id is not None for event in await messages_of(gateway)] == [False, True]
        shown = text_of(await last_input(gateway))
        assert shown.index("the sky is green") < shown.index("which colour?")


@pytest.mark.promise("channels.silent_refusals")
async def test_a_group_that_is_not_listed_is_refused_in_silence(platform: Platform, home: Path) -> None:
    unlisted = dict.fromkeys(platform.group_rules({}))
    async with connected(platform, home, "Hello.", **unlisted) as gateway:
        await platform.say("hello", room=True, mention=True)
        await eventually(lambda: _received(gateway, 1))
        await platform.say("hello")
        await platform.posts(1, chat="ann")
        first = (await messages_of(gateway))[0]
        assert (first.state, first.code) == ("refused", "access.group_not_listed")
        assert first.why and first.fix
        assert await said(platform, "room") == []


# --- Limits and losses


@pytest.mark.promise("channels.limits_are_not_failures")
async def test_a_rate_limit_is_waited_for_and_not_counted(platform: Platform, home: Path) -> None:
    needs(platform, "limit")
    async with connected(platform, home, "Hello."):
        platform.limit_once(0.5)
        await platform.say("hello")
        await platform.posts(1, chat="ann")
        assert await settled(home, 1) == ["delivered"]
        assert deliveries_in(home, "attempts") == [(1,)]
        assert await said(platform, "ann") == ["Hello."]


@pytest.mark.promise("channels.lanes")
async def test_a_limited_chat_holds_up_no_other(platform: Platform, home: Path) -> None:
    needs(platform, "limit")
    if "limit_of_account" in platform.can:
        pytest.skip(f"{platform.name} limits the whole account")
    async with connected(platform, home, "Hello."):
        platform.limit_once(600)
        await platform.say("hello", sender="bob")
        await until(lambda: any(error for (error,) in deliveries_in(home, "error")))
        await platform.say("hello")
        await platform.posts(1, chat="ann")
        assert await said(platform, "bob") == []


@pytest.mark.promise("channels.lost_receipts")
async def test_an_answer_whose_receipt_was_lost_is_not_doubled(platform: Platform, home: Path) -> None:
    needs(platform, "lost_receipt")
    async with connected(platform, home, "One.", "Two."):
        platform.lose_receipt_once()
        await platform.say("first")
        [state] = await settled(home, 1)
        assert state in ("delivered", "ambiguous")
        await platform.say("second")
        assert [post.text for post in await platform.posts(2, chat="ann")] == ["One.", "Two."]
        assert await settled(home, 2) == [state, "delivered"]


@pytest.mark.promise("channels.reconnect")
async def test_an_answer_arrives_when_the_server_is_back(platform: Platform, home: Path) -> None:
    gate = Gate()
    async with connected(platform, home, calls("hold"), "Here.", "Again.", tools=(gate.tool,)) as gateway:
        await platform.say("hello")
        await gate.reached.wait()
        await platform.stop()
        if platform.name == "signal":  # what is written before the end is noticed may have been sent
            await until(lambda: all(each.state != "connected" for each in gateway.chats.statuses()))
        gate.open.set()
        await until(lambda: any(error for (error,) in deliveries_in(home, "error")))
        await platform.start()
        await platform.posts(1, chat="ann")
        await platform.say("are you there?")
        assert [post.text for post in await platform.posts(2, chat="ann")] == ["Here.", "Again."]


@pytest.mark.promise("channels.catch_up")
async def test_messages_of_a_time_without_a_gateway_are_answered_later(
    platform: Platform, home: Path
) -> None:
    if "backlog" not in platform.can:
        needs(platform, "replay")
    async with connected(platform, home, "One.", "Two."):
        await platform.say("first")
        await platform.posts(1, chat="ann")
    await platform.say("second")
    async with connected(platform, home, "One.", "Two."):
        assert [post.text for post in await platform.posts(2, chat="ann")] == ["One.", "Two."]


@pytest.mark.promise("channels.survive_a_kill")
@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_killed_gateway_loses_and_doubles_nothing(platform: Platform, home: Path, point: str) -> None:
    if point == "before-inbox":
        needs(platform, "replay")
    answers = ("One.", "Two.", "Three.")
    environment = getattr(platform, "environment", dict)()
    async with connected(platform, home, *answers):
        await platform.say("first")
        await platform.posts(1, chat="ann")
        await settled(home, 1)
    async with gateway_process(home, settings_for(platform, *answers), point, environment) as process:
        await until(lambda: process.has_connected() or process.has_ended())
        await platform.say("second")
        await process.killed()
    async with connected(platform, home, *answers) as gateway:
        states = await settled(home, 2)
        await platform.say("third")
        await settled(home, 3)
        posted = await said(platform, "ann")
        assert await verdicts(gateway) == ["turn", "turn", "turn"]
    if states == ["delivered", "delivered"]:
        assert posted == ["One.", "Two.", "Three."]
    else:
        assert point in ("before-delivery", "after-delivery")
        assert states == ["delivered", "ambiguous"], "nobody would know of a loss"
        assert posted in (["One.", "Three."], ["One.", "Two.", "Three."])


# --- Files


@pytest.mark.promise("channels.media_in")
async def test_a_file_reaches_the_workspace_of_the_agent(platform: Platform, home: Path) -> None:
    needs(platform, "media_in")
    async with connected(platform, home, "Thank you.") as gateway:
        await platform.say("read this", file=("note.txt", b"what is in the note"))
        await platform.posts(1, chat="ann")
        [note] = home.rglob("note.txt")
        assert note.read_bytes() == b"what is in the note"
        shown = text_of(await last_input(gateway))
        assert "read this" in shown and "note.txt" in shown


@pytest.mark.promise("channels.media_in")
async def test_an_image_is_shown_to_the_agent(platform: Platform, home: Path) -> None:
    needs(platform, "media_in")
    async with connected(platform, home, "A dot.") as gateway:
        await platform.say("what is it?", file=("dot.png", PNG))
        await platform.posts(1, chat="ann")
        content = (await last_input(gateway))["content"]
        assert [part["mimeType"] for part in content if part["type"] == "image"] == ["image/png"]


@pytest.mark.promise("channels.media_out")
async def test_a_file_of_the_agent_reaches_the_chat(platform: Platform, home: Path) -> None:
    needs(platform, "media_out")
    steps = (
        calls("write", path="report.txt", content="what we found"),
        calls("message", message="Here it is.", files=["report.txt"]),
        "NO_REPLY",
    )
    async with connected(platform, home, *steps):
        await platform.say("send me the report")
        posts = await platform.posts(2, chat="ann")
        assert await settled(home, 1) == ["delivered"]
        assert [(post.text, post.file) for post in posts] == [("Here it is.", None), ("", b"what we found")]


# --- Threads of sub-agents


@pytest.mark.promise("channels.threads_of_children")
async def test_a_child_speaks_in_a_thread_of_its_own_and_is_spoken_to_there(
    platform: Platform, home: Path
) -> None:
    needs(platform, "open_thread")
    order = {"task": "say: I am here.", "thread": True, "mode": "session"}
    async with connected(platform, home, **platform.group_rules({"requireMention": False})):
        await platform.say(f"call sessions_spawn {json.dumps(order)}", room=True)
        first = await _post_in_a_thread(platform, "I am here.")
        await platform.say("say: I hear you.", room=True, thread=first.thread)
        answer = await _post_in_a_thread(platform, "I hear you.")
        assert answer.thread == first.thread


async def _post_in_a_thread(platform: Platform, text: str) -> Post:
    found: list[Post] = []

    async def is_there() -> bool:
        posts = await platform.posts(0, chat="room")
        found[:] = [post for post in posts if text in post.text and post.thread is not None]
        return bool(found)

    await eventually(is_there)
    return found[0]
