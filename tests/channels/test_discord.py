"""What is special about Discord, through a real gateway and a fake Discord."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.channels.discord_objects import BOT_ID, BOT_ROLE_ID, FORUM_ID, ROOM_ID, rate_limited
from tests.channels.discord_platform import DiscordPlatform
from tests.channels.fake_discord import TOKEN
from tests.integration.helpers import Gate, texts, transcript, use
from tests.waiting import LIMIT_S, until

from hobnob.channels.discord import DiscordChannel
from hobnob.channels.discord.gateway import Session
from hobnob.channels.discord.markup import discord_text, length
from hobnob.channels.discord.receipts import Receipts, key_of, nonce
from hobnob.config.channels import Place
from hobnob.config.channels.discord import Discord
from hobnob.gateway import Gateway
from hobnob.inbound import Address, Inbound
from hobnob.records import replace
from hobnob.store import Tx, deliveries
from hobnob.store.chats import inbox
from hobnob.testing import calls, rehearse
from hobnob.types import Delivery, new_id

MAIN = "agent:main:main"
ROOM = f"agent:main:discord:channel:{ROOM_ID}"


@pytest.fixture
async def discord() -> AsyncIterator[DiscordPlatform]:
    platform = DiscordPlatform()
    await platform.start()
    yield platform
    await platform.stop()


def settings(discord: DiscordPlatform, *answers: Any, **more: Any) -> dict[str, Any]:
    """Everybody may write to the bot, directly and, with a mention, in the room."""
    block = discord.settings() | {"dmPolicy": "open", "allowFrom": ["*"]} | discord.group_rules({}) | more
    scripts = {"*": list(answers)} if answers else {}
    return {"channels": {"discord": block}, "models": {"rehearsal": {"scripts": scripts}}}


@asynccontextmanager
async def connected(
    home: Path, discord: DiscordPlatform, *answers: Any, **more: Any
) -> AsyncIterator[Gateway]:
    signed_in = len(discord.fake.sign_ins)
    async with rehearse(home, settings(discord, *answers, **more)) as gateway:
        await discord.fake.until(lambda: len(discord.fake.sign_ins) > signed_in)
        yield gateway


async def status(gateway: Gateway, state: str, error: str = "") -> Any:
    """The status of the account, as soon as it has this state and an error with this text."""
    statuses = gateway.chats.accounts.statuses
    await until(lambda: [s for s in statuses() if s.state == state and error in (s.last_error or "")])
    return statuses()[0]


async def stored(gateway: Gateway, message_id: str) -> Any:
    """What became of a message, as soon as it is stored."""
    await eventually(gateway, lambda tx: find(tx, message_id) is not None)
    return await gateway.store.read(find, message_id)


def find(tx: Tx, message_id: str) -> Any:
    return inbox.find(tx, "discord", "default", message_id)


async def settled(gateway: Gateway, state: str) -> list[Delivery]:
    """The deliveries of the main session, as soon as all have this state."""

    def all_are(tx: Tx) -> bool:
        return {row.state for row in deliveries.of_session(tx, MAIN)} == {state}

    await eventually(gateway, all_are)
    return await gateway.store.read(deliveries.of_session, MAIN)


async def eventually(gateway: Gateway, holds: Callable[[Tx], bool]) -> None:
    """Wait until something holds in the store."""
    changed = asyncio.Event()
    gateway.store.watch(lambda _: changed.set())
    async with asyncio.timeout(LIMIT_S):
        while not await gateway.store.read(holds):
            await changed.wait()
            changed.clear()


async def greeted(discord: DiscordPlatform) -> None:
    """A first message and its answer: then the session is stored, and the chat is known."""
    await discord.say("are you there?")
    await discord.posts(1, chat="ann")


def posted_bodies(discord: DiscordPlatform) -> list[dict[str, Any]]:
    """The requests with which the bot posted messages."""
    return [b for m, path, b in discord.fake.requests if m == "POST" and path.endswith("/messages")]


# The gateway session.


@pytest.mark.promise("discord.session_is_resumed", "discord.never_closed_for_good")
async def test_a_restart_resumes_the_session_and_gets_what_was_written_meanwhile(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    async with connected(tmp_path, discord):
        await discord.say("first")
        await discord.posts(1, chat="ann")
    assert discord.fake.close_codes == [4000]
    await discord.say("while it was down")
    async with connected(tmp_path, discord) as gateway:
        await discord.posts(2, chat="ann")
        assert await texts(gateway, MAIN, "user") == ["first", "while it was down"]
    assert discord.fake.sign_ins == ["identify", "resume"]


@pytest.mark.promise("discord.gap_is_fetched")
async def test_a_lost_session_is_made_up_for_from_the_history_of_known_chats(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    thread = await discord.open_thread()
    async with connected(tmp_path, discord):
        await discord.say("first")
        await discord.say("in the thread", mention=True, thread=thread)
        await discord.posts(1, chat="ann")
        await discord.posts(1, chat="room")
    discord.fake.forget_sessions()
    for number in range(120):  # more than a page
        await discord.say(f"missed {number}")
    await discord.say("missed in the thread", mention=True, thread=thread)
    async with connected(tmp_path, discord) as gateway:
        assert len(await discord.posts(121, chat="ann")) == 121
        await discord.posts(2, chat="room")
        asked = await texts(gateway, MAIN, "user")  # the newest
        assert asked[-90:] == [f"missed {number}" for number in range(30, 120)]
    assert discord.fake.sign_ins == ["identify", "identify"]


@pytest.mark.promise("discord.gap_is_fetched")
async def test_a_new_session_is_stored_only_after_the_gap_is_closed(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    async with connected(tmp_path, discord):
        await discord.say("first")
        await discord.posts(1, chat="ann")
    discord.fake.forget_sessions()
    await discord.say("missed")
    discord.fake.history_fails = 1  # in the middle of catching up
    async with connected(tmp_path, discord):
        await discord.posts(2, chat="ann")
    assert discord.fake.sign_ins == ["identify", "identify", "identify"]


async def test_messages_of_a_channel_that_cannot_be_looked_up_do_not_pass_for_direct_ones(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    async with connected(tmp_path, discord):
        await discord.say("in the room", room=True, mention=True)
        await discord.say("directly")
        await discord.posts(1, chat="room")
        await discord.posts(1, chat="ann")
    discord.fake.forget_sessions()
    missed = await discord.say("missed in the room", room=True, mention=True)
    await discord.say("missed directly")
    discord.fake.instead[f"/channels/{ROOM_ID}"] = missing_access
    async with connected(tmp_path, discord) as gateway:
        await discord.posts(2, chat="ann")
        await discord.say("now", room=True, mention=True)
        await discord.posts(2, chat="room")
        assert await gateway.store.read(find, missed) is None


async def missing_access(_: web.Request) -> web.Response:
    return web.json_response({"message": "Missing Access", "code": 50001}, status=403)


async def test_discord_may_ask_to_reconnect(tmp_path: Path, discord: DiscordPlatform) -> None:
    async with connected(tmp_path, discord) as gateway:
        await greeted(discord)
        await discord.fake.ask_to_reconnect()
        await discord.say("and now?")
        await discord.posts(2, chat="ann")
        assert discord.fake.sign_ins == ["identify", "resume"]
        assert (await status(gateway, "connected")).reconnects == 0


async def test_a_connection_without_acknowledged_heartbeats_is_replaced(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    discord.fake.heartbeat_ms = 500
    async with connected(tmp_path, discord):
        await greeted(discord)
        discord.fake.acknowledges = False
        await discord.fake.until(lambda: discord.fake.sign_ins[-1] == "resume")
        discord.fake.acknowledges = True
        await discord.say("alive")
        await discord.posts(2, chat="ann")
        assert set(discord.fake.close_codes) == {4000}


async def test_a_broken_connection_is_resumed(tmp_path: Path, discord: DiscordPlatform) -> None:
    async with connected(tmp_path, discord):
        await greeted(discord)
        discord.fake.drop()
        await discord.say("while disconnected")
        await discord.posts(2, chat="ann")
        assert discord.fake.sign_ins == ["identify", "resume"]


async def test_a_session_that_discord_calls_over_is_not_resumed_again(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    async with connected(tmp_path, discord):
        await greeted(discord)
        await discord.fake.close(4009)
        await discord.say("new session")
        await discord.posts(2, chat="ann")
        assert discord.fake.sign_ins == ["identify", "identify"]


def test_a_session_of_another_server_is_not_resumed_there() -> None:
    session = Session("https://discord.com/api/v10", "id", "wss://gateway", 7)
    assert Session.from_cursor(session.cursor(), "https://discord.com/api/v10") == session
    assert Session.from_cursor(session.cursor(), "https://elsewhere/api/v10") is None
    assert [Session.from_cursor(bad, "x") for bad in (None, "", "{", "[]", '{"api": "x"}')] == [None] * 5


async def test_malformed_events_are_skipped(tmp_path: Path, discord: DiscordPlatform) -> None:
    async with connected(tmp_path, discord):
        await discord.say("before")
        for frame in ("{", "[]", "null", '{"op": 0}', '{"op": 0, "s": "1", "t": 5}', "[" * 5000):
            await discord.fake.send_raw(frame)
        for fields in ({}, {"id": "1"}, {"author": []}, {"author": {"id": 5}, "id": "x"}, {"type": []}):
            await discord.fake.dispatch("MESSAGE_CREATE", {"mentions": [], "author": {"id": "77"}} | fields)
        await discord.fake.dispatch("GUILD_CREATE", {"channels": 7})
        await discord.fake.dispatch("SOMETHING_NEW", {})
        await discord.say("after")
        await discord.posts(2, chat="ann")
        assert discord.fake.sign_ins == ["identify"]


async def garbage(_: web.Request) -> web.Response:
    return web.Response(text="<html>not JSON</html>")


async def failure(_: web.Request) -> web.Response:
    return web.Response(status=500)


async def list_instead(_: web.Request) -> web.Response:
    return web.json_response([[], {}, "x"])


@pytest.mark.parametrize("path", ["/users/@me", "/gateway/bot"])
@pytest.mark.parametrize("answer", [garbage, failure, list_instead, missing_access])
async def test_unusable_answers_are_a_reason_to_connect_again(
    tmp_path: Path, discord: DiscordPlatform, path: str, answer: Any
) -> None:
    discord.fake.instead[path] = answer
    async with rehearse(tmp_path, settings(discord)) as gateway:
        await status(gateway, "reconnecting")
        discord.fake.instead.clear()
        await status(gateway, "connected")


async def test_unusable_answers_to_messages_do_not_double_them(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    unusable = [web.Response(text="<html>"), web.Response(status=502), web.json_response({"id": 5})]
    discord.fake.instead_of_receipts = unusable
    async with connected(tmp_path, discord, "Once.") as gateway:
        discord.fake.withheld = True
        await discord.say("one")
        await settled(gateway, "delivered")
        assert [post.text for post in discord.posted("ann")] == ["Once."]
        assert len(posted_bodies(discord)) == 4


# Signing in.


@pytest.mark.promise("discord.refused_login_is_explained")
@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("token", "another", "copy a new one from the developer portal"),
        ("granted_intents", ~(1 << 15), "switch on 'Message Content Intent'"),
    ],
)
async def test_an_account_that_may_not_sign_in_stops_and_says_what_to_do(
    tmp_path: Path, discord: DiscordPlatform, name: str, value: Any, hint: str
) -> None:
    setattr(discord.fake, name, value)
    async with rehearse(tmp_path, settings(discord)) as gateway:
        stopped = await status(gateway, "stopped", hint)
        assert TOKEN not in stopped.last_error


async def test_without_the_intent_the_bot_still_reads_what_mentions_it(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    discord.fake.granted_intents = ~(1 << 15)
    async with connected(tmp_path, discord, "Yes?", intents={"messageContent": False}) as gateway:
        await discord.say("hey", room=True, mention=True)
        await discord.posts(1, chat="room")
        assert "hey" in (await texts(gateway, ROOM, "user"))[0]


async def test_token_and_address_may_come_from_the_environment(
    tmp_path: Path, discord: DiscordPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISCORD_BOT_TOKEN", f"Bot {TOKEN}")
    monkeypatch.setenv("DISCORD_API_URL", f"http://127.0.0.1:{discord.fake.port}")
    async with connected(tmp_path, discord, token=None, apiUrl=None) as gateway:
        identity = (await status(gateway, "connected")).identity
        assert (identity.id, identity.name) == (BOT_ID, "hobnob")


async def test_a_probe_tells_that_an_intent_is_missing(tmp_path: Path, discord: DiscordPlatform) -> None:
    async with connected(tmp_path, discord) as gateway:
        channel = gateway.chats.accounts.find("discord", None)
        assert channel is not None
        assert (await channel.probe()).detail == ""
        discord.fake.granted_intents = 0
        assert "Message Content Intent" in (await channel.probe()).detail


# Messages in.


@pytest.mark.promise("discord.threads_are_sessions")
async def test_a_thread_has_a_session_of_its_own_under_its_channel(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    thread = await discord.open_thread()
    async with connected(tmp_path, discord, "In here.") as gateway:
        await discord.say("hello", mention=True, thread=thread)
        (answer,) = await discord.posts(1, chat="room")
        assert (answer.text, answer.thread) == ("In here.", thread)
        assert len(await texts(gateway, f"{ROOM}:thread:{thread}", "user")) == 1


async def test_a_thread_is_recognised_after_a_restart_too(tmp_path: Path, discord: DiscordPlatform) -> None:
    thread = await discord.open_thread()
    async with connected(tmp_path, discord):
        await discord.say("hello")
        await discord.posts(1, chat="ann")
    async with connected(tmp_path, discord):  # resumed: nobody tells the bot about the channels again
        await discord.say("hello", mention=True, thread=thread)
        (answer,) = await discord.posts(1, chat="room")
        assert answer.thread == thread


@pytest.mark.parametrize("mention", [f"<@{BOT_ID}>", f"<@!{BOT_ID}>", f"<@&{BOT_ROLE_ID}>"])
async def test_the_bot_is_mentioned_by_its_id_or_its_own_role(
    tmp_path: Path, discord: DiscordPlatform, mention: str
) -> None:
    async with connected(tmp_path, discord) as gateway:
        message = await discord.say(f" {mention}  are you there?", room=True)
        await discord.posts(1, chat="room")
        row = await stored(gateway, message)
        assert Inbound.from_json(row.body).text == "are you there?"


async def test_a_mere_mention_is_a_message_too(tmp_path: Path, discord: DiscordPlatform) -> None:
    async with connected(tmp_path, discord) as gateway:
        message = await discord.say("", room=True, mention=True)
        await discord.posts(1, chat="room")
        assert Inbound.from_json((await stored(gateway, message)).body).text.strip() == "@hobnob"


async def test_mentions_of_others_do_not_address_the_bot(tmp_path: Path, discord: DiscordPlatform) -> None:
    async with connected(tmp_path, discord) as gateway:
        everyone = await discord.say("@everyone look", room=True)
        bob = await discord.say(f"<@{discord.user_id('bob')}> look", room=True)
        for message in (everyone, bob):
            assert (await stored(gateway, message)).state == "context"


async def test_people_are_named_in_place_of_their_ids(tmp_path: Path, discord: DiscordPlatform) -> None:
    async with connected(tmp_path, discord) as gateway:
        await discord.say(f"ask <@{discord.user_id('bob')}> about it")
        await discord.posts(1, chat="ann")
        assert await texts(gateway, MAIN, "user") == ["ask @Bob about it"]


async def test_notices_edits_and_own_messages_are_no_messages(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    fake, ann = discord.fake, discord.user_id("ann")
    async with connected(tmp_path, discord) as gateway:
        dm = fake.dm(ann)["id"]
        pinned = await fake.say(ann, dm, "", type=6)
        own = await fake.say(BOT_ID, dm, "from the bot itself")
        asked = await fake.say(ann, dm, "a question")
        await fake.dispatch("MESSAGE_UPDATE", {**asked, "content": "another question"})
        await discord.posts(2, chat="ann")
        assert await texts(gateway, MAIN, "user") == ["a question"]
        for message in (pinned, own):
            assert await gateway.store.read(find, message["id"]) is None


async def test_webhooks_count_as_bots(tmp_path: Path, discord: DiscordPlatform) -> None:
    async with connected(tmp_path, discord) as gateway:
        ann = discord.user_id("ann")
        message = await discord.fake.say(ann, ROOM_ID, f"<@{BOT_ID}> hi", webhook_id="1600000000000000001")
        row = await stored(gateway, message["id"])
        assert (row.state, row.is_bot) == ("refused", True)


async def test_a_file_that_is_larger_than_it_claims_is_not_taken(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    async with connected(tmp_path, discord, "Seen.", mediaMaxMb=0.001) as gateway:
        ann = discord.user_id("ann")
        file = ("a.txt", "text/plain", b"x" * 5000)
        await discord.fake.say(ann, discord.fake.dm(ann)["id"], "look", files=[file], claimed_size=5)
        await discord.posts(1, chat="ann")
        (asked,) = [m for m in await transcript(gateway, MAIN) if m["role"] == "user"]
        assert "media unavailable" in str(asked)


async def test_a_forwarded_message_has_the_text_and_files_of_the_original(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    fake, ann = discord.fake, discord.user_id("ann")
    async with connected(tmp_path, discord) as gateway:
        original = {"content": "the news", "attachments": []}
        await fake.say(ann, fake.dm(ann)["id"], "", message_snapshots=[{"message": original}])
        await discord.posts(1, chat="ann")
        assert await texts(gateway, MAIN, "user") == ["the news"]


async def test_members_of_a_role_are_admitted_also_when_caught_up(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    discord.fake.member_roles[discord.user_id("ann")] = ["1400000000000000009"]
    rules = discord.group_rules({"roles": ["1400000000000000009"], "allowFrom": []})
    async with connected(tmp_path, discord, **rules):
        await discord.say("one", room=True, mention=True)
        await discord.say("not me", room=True, mention=True, sender="eve")
        await discord.posts(1, chat="room")
    discord.fake.forget_sessions()
    refused = await discord.say("not me either", room=True, mention=True, sender="eve")
    await discord.say("two", room=True, mention=True)
    async with connected(tmp_path, discord, **rules) as gateway:
        await discord.posts(2, chat="room")
        assert (await stored(gateway, refused)).state == "refused"
        assert len(await texts(gateway, ROOM, "user")) == 2


def test_channels_of_a_server_are_listed_by_id_or_name() -> None:
    listed = {"general": {"requireMention": False}, "7": {"enabled": False}}
    guilds = {"1": {"channels": listed, "requireMention": True, "users": [5]}, "2": {}}
    account = Discord.model_validate({"guilds": guilds})
    by_name = account.group(Place("9", "general", "1"))
    assert by_name is not None and (by_name.require_mention, by_name.users) == (False, ["5"])
    assert [account.group(Place(c, "x", "1")).enabled for c in ("7", "8")] == [False, False]  # type: ignore[union-attr]
    assert account.group(Place("8", "x", "2")) == account.guilds["2"]
    assert account.group(Place("8", "x", "3")) is None


@pytest.mark.parametrize(
    ("dm", "policy", "people"),
    [
        ({"enabled": False}, "disabled", []),
        ({"policy": "allowlist", "allowFrom": [7]}, "allowlist", ["7"]),
        ({"enabled": True}, "pairing", []),
    ],
)
def test_rules_of_direct_chats_are_read_under_dm_too(
    dm: dict[str, Any], policy: str, people: list[str]
) -> None:
    account = Discord.model_validate({"dm": dm})
    assert (account.dm_policy, account.allow_from) == (policy, people)


# Messages out.


@pytest.mark.promise("discord.answers_mention_nobody")
async def test_answers_mention_nobody_show_no_previews_and_have_a_nonce(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    async with connected(tmp_path, discord, "Look at https://example.org @everyone", replyToMode="all"):
        asked = await discord.say("where?")
        await discord.posts(1, chat="ann")
        (body,) = posted_bodies(discord)
        assert body["allowed_mentions"] == {"parse": []}
        assert (body["flags"], body["enforce_nonce"]) == (4, True)
        assert 0 < len(body["nonce"]) <= 25
        assert body["message_reference"] == {"message_id": asked, "fail_if_not_exists": False}


def test_tables_become_code_blocks_because_discord_has_none() -> None:
    table = "| a | b |\n|---|:-:|\n| 1 | 2 |"
    assert discord_text(f"Look:\n{table}\nthat is all") == f"Look:\n```\n{table}\n```\nthat is all"
    for unchanged in (f"```\n{table}\n```", "~~~\n```\n" + table, "a | b", "| a |\n| b |", "x || y", "|"):
        assert discord_text(unchanged) == unchanged
    assert length(table) == len(table) + 8


def test_a_text_made_of_pipes_takes_no_long_time() -> None:
    hard = ["| a |\n|" + piece * 100_000 + "x" for piece in ("-", "-|", " |", "- ", "|-")]
    began = time.process_time()
    for text in [*hard, "| a |\n|-|\n" * 30_000, "```\n" * 50_000 + "|"]:
        length(text)
    assert time.process_time() - began < 20  # it takes half a second


async def test_a_long_answer_comes_in_parts_that_discord_takes(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    answer = "\n\n".join(f"Paragraph {number}: {'🙂' * 400}" for number in range(9))
    async with connected(tmp_path, discord, answer):
        await discord.say("tell me everything")
        await until(lambda: sum(post.text.count("Paragraph") for post in discord.posted("ann")) == 9)
        posts = discord.posted("ann")
        assert "\n\n".join(post.text for post in posts) == answer
        assert all(len(post.text.encode("utf-16-le")) // 2 <= 2000 for post in posts)


@pytest.mark.promise("discord.repeats_have_one_nonce")
async def test_a_part_is_sent_again_under_its_nonce_when_its_receipt_is_lost(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    discord.fake.faults.append(lambda _: rate_limited(0.3))
    discord.fake.lose_receipts = 1
    discord.fake.withheld = True  # or else the bot sees its own message, and knows that it was sent
    async with connected(tmp_path, discord, "Once.") as gateway:
        await discord.say("one")
        await settled(gateway, "delivered")
        assert [post.text for post in discord.posted("ann")] == ["Once."]
        assert len(posted_bodies(discord)) == 3


@pytest.mark.promise("discord.own_message_is_proof")
async def test_the_bots_own_message_proves_what_its_lost_receipt_could_not(
    tmp_path: Path, discord: DiscordPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = replace(DiscordChannel.capabilities, repeatable_s=0.0)  # as when it happened minutes ago
    monkeypatch.setattr(DiscordChannel, "capabilities", once)
    async with connected(tmp_path, discord, "Proven.") as gateway:
        discord.fake.faults.append(lambda _: rate_limited(0.3))
        discord.fake.lose_receipts = 1
        discord.fake.withheld = True
        await discord.say("one", sender="bob")
        await settled(gateway, "ambiguous")
    discord.fake.withheld = False
    async with connected(tmp_path, discord) as gateway:  # another process sees it
        (row,) = await settled(gateway, "delivered")
        assert row.external_id == discord.posted("bob")[0].id


async def test_a_message_that_was_seen_needs_no_receipt(tmp_path: Path, discord: DiscordPlatform) -> None:
    async with connected(tmp_path, discord) as gateway:
        receipts, accounts = Receipts(), gateway.chats.accounts
        box = accounts.inbox_of("discord", "default")
        receipts.begin("a part")
        await receipts.on_own_message({"nonce": nonce("another part"), "id": "7"}, box)
        await receipts.on_own_message({"nonce": nonce("a part"), "id": "8"}, box)
        assert receipts.ended("a part") == "8"
        receipts.begin("a part")
        assert receipts.ended("a part") is None


def test_a_nonce_can_be_read_back() -> None:
    key = f"{new_id()}:12"
    assert key_of(nonce(key)) == key
    assert len(nonce(key)) <= 25
    assert nonce("draft:1") == nonce("draft:1") != nonce("draft:2")
    assert [key_of(other) for other in (nonce("draft:1"), "", "12", "x" * 25)] == [None] * 4


@pytest.mark.promise("discord.limits_are_obeyed")
async def test_the_headers_of_a_bucket_keep_the_bot_below_the_limit(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    discord.fake.bucket_size, discord.fake.bucket_s = 2, 0.5
    async with connected(tmp_path, discord, *(f"Answer {n}" for n in range(5))):
        for number in range(5):
            await discord.say(f"question {number}")
        posts = await discord.posts(5, chat="ann")
        assert [post.text for post in posts] == [f"Answer {n}" for n in range(5)]
    assert discord.fake.refused_by_limit == 0


@pytest.mark.promise("discord.limits_are_obeyed")
async def test_a_global_limit_holds_up_every_chat_and_counts_as_no_attempt(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    discord.fake.faults.append(lambda _: rate_limited(1.0, "global"))
    async with connected(tmp_path, discord, "Late.") as gateway:
        await discord.say("one")
        (post,) = await discord.posts(1, chat="ann")
        assert post.text == "Late."
        assert len(posted_bodies(discord)) == 2
        (row,) = await settled(gateway, "delivered")
        assert row.attempts == 1


async def test_a_person_who_takes_no_messages_is_a_failure_with_the_reason(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    discord.fake.closed_to_bots.add(discord.user_id("ann"))
    async with connected(tmp_path, discord, "Nobody reads this.") as gateway:
        await discord.say("one")
        (row,) = await settled(gateway, "failed")
        assert "Cannot send messages to this user" in str(row.error)


async def test_a_token_that_is_revoked_stops_the_account(tmp_path: Path, discord: DiscordPlatform) -> None:
    async with connected(tmp_path, discord) as gateway:
        discord.fake.token = "revoked"
        await discord.say("one")
        await status(gateway, "stopped", "developer portal")


async def test_threads_are_not_opened_in_threads_forums_and_direct_chats(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    thread = await discord.open_thread()
    async with connected(tmp_path, discord) as gateway:
        channel = gateway.chats.accounts.find("discord", None)
        assert channel is not None
        reasons = [
            await channel.can_open_thread(place)
            for place in (
                Address(f"channel:{ROOM_ID}"),
                Address(f"channel:{ROOM_ID}", thread),
                Address(f"channel:{FORUM_ID}"),
                Address(f"user:{discord.user_id('ann')}"),
            )
        ]
        assert reasons[0] is None
        assert ["thread" in str(reason) for reason in reasons[1:]] == [True] * 3


async def test_a_second_thread_at_a_message_stands_by_itself(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    async with connected(tmp_path, discord) as gateway:
        channel = gateway.chats.accounts.find("discord", None)
        assert channel is not None
        root = await discord.say("root", room=True)
        room = Address(f"channel:{ROOM_ID}")
        first = await channel.open_thread(room, "first\nthread " + "x" * 200, root)
        second = await channel.open_thread(room, "second", root)
        assert first == root != second
        assert discord.fake.channels[first]["name"].startswith("first thread xxx")
        assert discord.fake.channels[second]["parent_id"] == ROOM_ID


async def test_a_sub_agent_gets_a_thread_of_the_channel_where_people_talk_to_it(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    block = settings(discord)
    scripts = {ROOM: [], "*": ["Task done.", "It is done.", "I am the child."]}
    block["models"] = {"rehearsal": {"scripts": scripts}}
    async with rehearse(tmp_path, block) as gateway:
        await status(gateway, "connected")
        await discord.say("hello", room=True, mention=True)
        await discord.posts(1, chat="room")
        answer = await use(
            gateway, "sessions_spawn", ROOM, task="dig", label="dig", thread=True, mode="session"
        )
        await discord.fake.until(lambda: [post for post in discord.posted("room") if post.thread])
        announced = next(post for post in discord.posted("room") if post.thread)
        assert discord.fake.channels[announced.thread or ""]["name"] == "dig"
        assert "It is done." in announced.text
        await discord.say("who are you?", thread=announced.thread)
        await discord.fake.until(lambda: discord.posted("room")[-1].text == "I am the child.")
        assert discord.posted("room")[-1].thread == announced.thread
        assert "who are you?" in await texts(gateway, answer["childSessionKey"], "user")


async def test_work_is_shown_by_a_reaction_typing_and_a_line_that_goes_with_the_answer(
    tmp_path: Path, discord: DiscordPlatform
) -> None:
    gate = Gate()
    block = settings(discord, calls("hold"), "This is the answer, and it is long enough for a draft.")
    block["channels"]["discord"] |= {"streaming": {"mode": "progress"}, "ackReaction": "👀"}
    async with rehearse(tmp_path, block, tools=(gate.tool,)) as gateway:
        await status(gateway, "connected")
        asked = await discord.say("work", room=True, mention=True)
        await gate.reached.wait()
        message = next(m for m in discord.fake.messages[ROOM_ID] if m["id"] == asked)
        await discord.fake.until(lambda: message["reactions"])
        assert message["reactions"][0]["emoji"]["name"] == "👀"
        await discord.fake.until(lambda: [p for _, p, _ in discord.fake.requests if p.endswith("/typing")])
        await discord.fake.until(lambda: "Working" in "".join(p.text for p in discord.posted("room")))
        gate.open.set()
        await discord.fake.until(
            lambda: discord.posted("room") and "answer" in discord.posted("room")[-1].text
        )
        await discord.fake.until(lambda: len(discord.posted("room")) == 1)  # the line about progress is gone
