"""The fake Discord does what Discord does: its well-known library works with it."""

import asyncio
import io
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import yarl
from tests.channels.discord_objects import BOT_ID, BOT_ROLE_ID, ROOM_ID, rate_limited
from tests.channels.fake_discord import TOKEN, FakeDiscord
from tests.waiting import LIMIT_S, until

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of a module for voices that it imports
    import discord
    from discord.gateway import DiscordWebSocket
    from discord.http import Route


@pytest.fixture
async def fake(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeDiscord]:
    fake = FakeDiscord()
    await fake.start()
    monkeypatch.setattr(Route, "BASE", fake.api_url)
    monkeypatch.setattr(DiscordWebSocket, "DEFAULT_GATEWAY", yarl.URL(f"ws://127.0.0.1:{fake.port}/gateway"))
    yield fake
    await fake.stop()


class Bot(discord.Client):
    """A bot of the library that keeps what it gets and answers `ping`."""

    def __init__(self) -> None:
        intents = discord.Intents.default()
        intents.message_content = True
        super().__init__(intents=intents)
        self.seen: list[Any] = []

    async def on_message(self, message: Any) -> None:
        self.seen.append(message)
        if message.author.id != int(BOT_ID) and message.content == "ping":
            await message.reply("pong")

    def texts(self) -> list[str]:
        return [message.content for message in self.seen]


@asynccontextmanager
async def connected() -> AsyncIterator[Bot]:
    bot = Bot()
    async with bot, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(bot.start(TOKEN))
        async with asyncio.timeout(LIMIT_S):
            await bot.wait_until_ready()
        yield bot
        await bot.close()
        await running


async def test_the_library_reads_a_direct_message_and_replies(fake: FakeDiscord) -> None:
    async with connected() as bot:
        ann = fake.person("ann")
        dm = fake.dm(ann["id"])
        asked = await fake.say(ann["id"], dm["id"], "ping")
        await fake.until(lambda: len(fake.messages[dm["id"]]) == 2)
        answer = fake.messages[dm["id"]][1]
        assert (answer["content"], answer["author"]["id"]) == ("pong", BOT_ID)
        assert answer["message_reference"]["message_id"] == asked["id"]
        message = bot.seen[0]
        assert (message.author.name, message.guild, str(message.id)) == ("ann", None, asked["id"])


async def test_the_library_sees_mentions_and_replies_to_itself(fake: FakeDiscord) -> None:
    async with connected() as bot:
        ann = fake.person("ann")["id"]
        fake.nicknames[ann] = "Annie"
        await fake.say(ann, ROOM_ID, f"<@{BOT_ID}> ping")
        await fake.say(ann, ROOM_ID, f"<@&{BOT_ROLE_ID}> ping")
        sent = await bot.get_channel(int(ROOM_ID)).send("hello")
        await fake.say(ann, ROOM_ID, "yes?", message_reference={"message_id": str(sent.id)})
        await until(lambda: len(bot.seen) == 4)
        by_id, by_role, own, reply = bot.seen
        assert bot.user in by_id.mentions
        assert by_id.author.display_name == "Annie"
        assert by_role.role_mentions[0].is_bot_managed()
        assert own.author == bot.user
        assert reply.reference.resolved.author == bot.user


async def test_the_library_finds_a_message_in_its_thread(fake: FakeDiscord) -> None:
    async with connected() as bot:
        ann = fake.person("ann")
        thread = await fake.open_thread("plan")
        await fake.say(ann["id"], thread["id"], "ping")
        await fake.until(lambda: len(fake.messages[thread["id"]]) == 2)
        assert isinstance(bot.seen[0].channel, discord.Thread)
        assert str(bot.seen[0].channel.parent_id) == ROOM_ID


async def test_the_library_opens_threads(fake: FakeDiscord) -> None:
    async with connected() as bot:
        room = bot.get_channel(int(ROOM_ID))
        root = await room.send("root")
        thread = await root.create_thread(name="at a message")
        alone = await room.create_thread(name="alone", type=discord.ChannelType.public_thread)
        assert thread.id == root.id
        assert alone.parent_id == thread.parent_id == room.id
        with pytest.raises(discord.HTTPException) as refused:
            await root.create_thread(name="a second one")
        assert refused.value.code == 160004


async def test_the_library_sends_and_reads_files(fake: FakeDiscord) -> None:
    async with connected() as bot:
        room = bot.get_channel(int(ROOM_ID))
        sent = await room.send("caption", file=discord.File(io.BytesIO(b"out"), filename="ä b.txt"))
        assert (sent.attachments[0].filename, sent.content) == ("ä b.txt", "caption")
        assert await sent.attachments[0].read() == b"out"
        await fake.say(fake.person("ann")["id"], ROOM_ID, "", files=[("a.png", "image/png", b"in")])
        await until(lambda: len(bot.seen) == 2)
        assert await bot.seen[1].attachments[0].read() == b"in"


async def test_the_library_waits_out_a_rate_limit(fake: FakeDiscord) -> None:
    async with connected() as bot:
        fake.faults.append(lambda _: rate_limited(0.2))
        await bot.get_channel(int(ROOM_ID)).send("once")
        assert [m["content"] for m in fake.messages[ROOM_ID]] == ["once"]
        assert len([path for method, path, _ in fake.requests if method == "POST"]) == 2


async def test_the_library_understands_the_headers_of_buckets(fake: FakeDiscord) -> None:
    fake.bucket_size, fake.bucket_s = 2, 1.0
    async with connected() as bot:
        for number in range(4):
            await bot.get_channel(int(ROOM_ID)).send(str(number))
        assert [m["content"] for m in fake.messages[ROOM_ID]] == ["0", "1", "2", "3"]


async def test_a_repeated_nonce_gives_the_first_message(fake: FakeDiscord) -> None:
    async with connected() as bot:
        await bot.get_channel(int(ROOM_ID)).send("from the library")
        body = fake.requests[-1][2]
        assert body["enforce_nonce"] is True  # so the library relies on it too
        route = Route("POST", "/channels/{channel_id}/messages", channel_id=ROOM_ID)
        first = await bot.http.request(route, json={"content": "a", "nonce": "n" * 25, "enforce_nonce": True})
        again = await bot.http.request(route, json={"content": "a", "nonce": "n" * 25, "enforce_nonce": True})
        assert first["id"] == again["id"]
        assert len(fake.messages[ROOM_ID]) == 2


async def drop(fake: FakeDiscord) -> None:
    fake.drop()


@pytest.mark.parametrize("interrupt", [drop, FakeDiscord.ask_to_reconnect])
async def test_the_library_resumes_and_gets_what_it_missed(
    fake: FakeDiscord, interrupt: Callable[[FakeDiscord], Any]
) -> None:
    async with connected() as bot:
        await interrupt(fake)
        await fake.say(fake.person("ann")["id"], ROOM_ID, "meanwhile")
        await until(lambda: bot.texts() == ["meanwhile"])
        assert fake.sign_ins == ["identify", "resume"]


async def test_the_library_begins_a_new_session_when_the_old_one_is_gone(fake: FakeDiscord) -> None:
    async with connected() as bot:
        fake.forget_sessions()
        await fake.until(lambda: fake.sign_ins == ["identify", "identify"])
        await fake.say(fake.person("ann")["id"], ROOM_ID, "again")
        await until(lambda: bot.texts() == ["again"])


async def test_the_library_comes_back_after_the_server_was_gone(fake: FakeDiscord) -> None:
    async with connected() as bot:
        await fake.stop()
        await fake.start()
        await fake.until(lambda: fake.sign_ins == ["identify", "resume"])
        await fake.say(fake.person("ann")["id"], ROOM_ID, "back")
        await until(lambda: bot.texts() == ["back"])


@pytest.mark.parametrize(("code", "answer"), [(1000, "INVALID_SESSION"), (4000, "RESUMED")])
async def test_a_session_outlives_its_connection_unless_that_is_closed_with_1000(
    fake: FakeDiscord, code: int, answer: str
) -> None:
    url = f"ws://127.0.0.1:{fake.port}/gateway?v=10&encoding=json"
    async with aiohttp.ClientSession() as http:
        first = await http.ws_connect(url)
        assert (await first.receive_json())["op"] == 10
        await first.send_json({"op": 2, "d": {"token": TOKEN, "intents": 1, "properties": {}}})
        ready = await first.receive_json()
        await first.close(code=code)
        await fake.until(lambda: fake.close_codes == [code])
        second = await http.ws_connect(url)
        resume = {"token": TOKEN, "session_id": ready["d"]["session_id"], "seq": ready["s"] + 1}
        assert (await second.receive_json())["op"] == 10
        await second.send_json({"op": 6, "d": resume})
        frame = await second.receive_json()
        assert (frame["t"] or {9: "INVALID_SESSION"}[frame["op"]]) == answer
        await second.close()


async def test_the_library_edits_reacts_deletes_and_reads_back(fake: FakeDiscord) -> None:
    async with connected() as bot:
        room = bot.get_channel(int(ROOM_ID))
        first = await room.send("one")
        second = await room.send("two")
        await second.edit(content="two!")
        await second.add_reaction("👀")
        async with room.typing():
            pass
        found = [message async for message in room.history(after=first)]
        assert [(m.content, str(m.reactions[0].emoji), m.reactions[0].me) for m in found] == [
            ("two!", "👀", True)
        ]
        await second.remove_reaction("👀", bot.user)
        await first.delete()
        (left,) = [message async for message in room.history()]
        assert (left.id, left.reactions) == (second.id, [])


async def test_the_library_is_told_why_it_may_not_sign_in(fake: FakeDiscord) -> None:
    async with Bot() as bot:
        with pytest.raises(discord.LoginFailure):
            await bot.start(TOKEN + "x")
    fake.granted_intents = ~(1 << 15)
    async with Bot() as bot:
        with pytest.raises(discord.PrivilegedIntentsRequired):
            await bot.start(TOKEN)


async def test_the_library_is_told_why_a_message_is_refused(fake: FakeDiscord) -> None:
    async with connected() as bot:
        room = bot.get_channel(int(ROOM_ID))
        ann = fake.person("ann")["id"]
        fake.closed_to_bots.add(ann)
        codes = []
        dm = await bot.create_dm(discord.Object(ann))
        for refused in (room.send("x" * 2001), room.send(""), dm.send("hello")):
            with pytest.raises(discord.HTTPException) as error:
                await refused
            codes.append(error.value.code)
        assert codes == [50035, 50006, 50007]
