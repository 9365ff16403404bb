"""The fake of the Telegram Bot API, used by the well-known library python-telegram-bot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.channels.fake_telegram import FORUM, TOKEN, ApiError, FakeTelegram

telegram = pytest.importorskip("telegram", reason="python-telegram-bot is not installed")
from telegram import Bot, ReactionTypeEmoji, Update  # noqa: E402
from telegram.error import BadRequest, ChatMigrated, Conflict, InvalidToken, RetryAfter, TimedOut  # noqa: E402
from telegram.ext import Application, ApplicationBuilder, MessageHandler, filters  # noqa: E402


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    server = FakeTelegram()
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def bot_of(fake: FakeTelegram, token: str = TOKEN) -> AsyncIterator[Any]:
    async with Bot(token, base_url=f"{fake.url}/bot", base_file_url=f"{fake.url}/file/bot") as bot:
        yield bot


@asynccontextmanager
async def echo(fake: FakeTelegram) -> AsyncIterator[Any]:
    """A bot of the library that receives by polling and repeats what it is told, in the same topic."""
    builder = ApplicationBuilder().token(TOKEN).base_url(f"{fake.url}/bot")
    application: Application[Any, Any, Any, Any, Any, Any] = builder.build()

    async def answer(update: Update, context: object) -> None:
        assert update.message is not None
        await update.message.reply_text(f"you said {update.message.text}", do_quote=True)

    application.add_handler(MessageHandler(filters.TEXT, answer))
    async with application:
        assert application.updater is not None
        await application.start()
        await application.updater.start_polling(timeout=2, poll_interval=0)
        yield application
        await application.updater.stop()
        await application.stop()


async def test_a_message_reaches_the_library_and_its_reply_arrives(fake):
    async with echo(fake):
        message = await fake.write(fake.person(7, "Ann"), 7, text="hello")
        await fake.until(lambda: fake.sent)
    assert (fake.sent[0].text, fake.sent[0].chat_id) == ("you said hello", 7)
    assert fake.sent[0].reply_to == message["message_id"]


async def test_a_reply_of_the_library_stays_in_the_topic(fake):
    ann = fake.person(7, "Ann")
    topic = await fake.open_topic(ann, "News")
    async with echo(fake):
        await fake.write(ann, FORUM, text="hi", message_thread_id=topic, is_topic_message=True)
        await fake.until(lambda: fake.sent)
    assert fake.sent[0].thread_id == topic


async def test_the_library_is_told_that_the_general_topic_cannot_be_named(fake):
    async with bot_of(fake) as bot:
        with pytest.raises(BadRequest, match="thread not found"):
            await bot.send_message(FORUM, "hi", message_thread_id=1)
        await bot.send_chat_action(FORUM, "typing", message_thread_id=1)
    assert fake.actions[0]["message_thread_id"] == 1


async def test_the_library_uploads_and_downloads_files(fake):
    fake.person(7, "Ann")
    async with bot_of(fake) as bot:
        sent = await bot.send_document(7, b"content", filename="a.txt", caption="<b>x</b>", parse_mode="HTML")
        assert (fake.sent[0].file, fake.sent[0].text) == (b"content", "x")
        file = await bot.get_file(sent.document.file_id)
        assert bytes(await file.download_as_bytearray()) == b"content"


async def test_the_library_is_told_how_long_a_rate_limit_lasts(fake, monkeypatch):
    monkeypatch.setenv("PTB_TIMEDELTA", "1")
    fake.person(7, "Ann")

    def limited(method: str, params: dict[str, Any]) -> None:
        raise ApiError(429, "Too Many Requests: retry after 3", retry_after=3)

    fake.failures.append(limited)
    async with bot_of(fake) as bot:
        with pytest.raises(RetryAfter) as limit:
            await bot.send_message(7, "hi")
        assert limit.value.retry_after.total_seconds() == 3
        await bot.send_message(7, "hi")
    assert len(fake.sent) == 1


async def test_the_library_goes_on_after_the_server_was_gone(fake):
    async with echo(fake):
        ann = fake.person(7, "Ann")
        await fake.write(ann, 7, text="one")
        await fake.until(lambda: len(fake.sent) == 1)
        await fake.stop()
        await fake.write(ann, 7, text="two")
        await fake.start()
        await fake.until(lambda: len(fake.sent) == 2)
    assert fake.sent[1].text == "you said two"


async def test_the_library_is_told_of_a_second_program_that_polls(fake):
    async with bot_of(fake) as one, bot_of(fake) as other:
        waiting = asyncio.create_task(one.get_updates(timeout=20))
        await fake.until(lambda: fake.offsets)
        fake.person(7, "Ann")
        newer = asyncio.create_task(other.get_updates(timeout=20))
        with pytest.raises(Conflict):
            await waiting
        await fake.push({"message": {"message_id": 1, "date": 1, "chat": fake.chat(7), "text": "x"}})
        assert len(await newer) == 1


async def test_the_library_sees_an_update_again_until_it_confirms_it(fake):
    await fake.write(fake.person(7, "Ann"), 7, text="hello")
    async with bot_of(fake) as bot:
        first = await bot.get_updates()
        again = await bot.get_updates()
        assert [u.update_id for u in first] == [u.update_id for u in again]
        assert await bot.get_updates(offset=first[0].update_id + 1, timeout=0) == ()


async def test_the_library_is_told_that_a_token_is_wrong(fake):
    with pytest.raises(InvalidToken):
        async with bot_of(fake, "1:wrong"):
            pass


async def test_the_library_is_told_the_new_id_of_a_group(fake):
    fake.moved[-5] = FORUM
    async with bot_of(fake) as bot:
        with pytest.raises(ChatMigrated) as moved:
            await bot.send_message(-5, "hi")
    assert moved.value.new_chat_id == FORUM


async def test_the_library_is_told_that_markup_is_not_understood(fake):
    fake.person(7, "Ann")
    async with bot_of(fake) as bot:
        for wrong in ("<b>x", "<p>x</p>", "<b><i>x</b></i>"):
            with pytest.raises(BadRequest, match=r"(?i)can't parse entities"):
                await bot.send_message(7, wrong, parse_mode="HTML")


async def test_the_library_edits_reacts_and_opens_topics(fake):
    fake.person(7, "Ann")
    async with bot_of(fake) as bot:
        sent = await bot.send_message(7, "one")
        await bot.edit_message_text("two", 7, sent.message_id)
        with pytest.raises(BadRequest, match="not modified"):
            await bot.edit_message_text("two", 7, sent.message_id)
        await bot.set_message_reaction(7, sent.message_id, ReactionTypeEmoji("👀"))
        topic = await bot.create_forum_topic(FORUM, "Work")
        await bot.send_message(FORUM, "in it", message_thread_id=topic.message_thread_id)
        assert (await bot.get_chat(FORUM)).is_forum
        await bot.delete_message(7, sent.message_id)
    assert [sent.text for sent in fake.sent] == ["in it"]
    assert fake.reactions[sent.message_id][0]["emoji"] == "👀"


async def test_the_library_loses_the_receipt_of_a_message_that_was_sent(fake):
    fake.person(7, "Ann")
    fake.lose_receipts = 1
    async with bot_of(fake) as bot:
        with pytest.raises((telegram.error.NetworkError, TimedOut)):
            await bot.send_message(7, "hi")
    assert len(fake.sent) == 1
