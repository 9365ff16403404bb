"""Telegram under test: the fake of its Bot API, with a forum as the room."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from tests.channels.fake_telegram import BOT, FORUM, TOKEN, ApiError, FakeTelegram, Sent
from tests.channels.platform import Post

PEOPLE = {"ann": 1001, "bob": 1002, "eve": 1003, "max": 1004}


class TelegramPlatform:
    name = "telegram"
    can = frozenset(
        "thread open_thread media_in media_out edit typing reaction replay limit lost_receipt".split()
    )

    def __init__(self) -> None:
        self.fake = FakeTelegram()
        self._messages: dict[str, dict[str, Any]] = {}
        self._people = {name: self.fake.person(number, name.title()) for name, number in PEOPLE.items()}

    async def start(self) -> None:
        await self.fake.start()

    async def stop(self) -> None:
        await self.fake.stop()

    def settings(self) -> dict[str, Any]:
        return {"botToken": TOKEN, "apiRoot": self.fake.url}

    def user_id(self, person: str) -> str:
        return str(PEOPLE[person])

    def room_id(self) -> str:
        return str(FORUM)

    def group_rules(self, rules: dict[str, Any]) -> dict[str, Any]:
        return {"groups": {self.room_id(): rules}}

    async def say(
        self,
        text: str,
        *,
        sender: str = "ann",
        room: bool = False,
        mention: bool = False,
        thread: str | None = None,
        reply_to: str | None = None,
        file: tuple[str, bytes] | None = None,
    ) -> str:
        message: dict[str, Any] = {}
        entities = []
        if mention:
            name = f"@{BOT['username']}"
            text = f"{name} {text}"
            entities = [{"type": "mention", "offset": 0, "length": len(name)}]
        if file is not None:
            name, content = file
            about = {
                "file_id": self.fake.add_file(content),
                "file_unique_id": "u",
                "file_name": name,
                "file_size": len(content),
            }
            message |= {"document": about, "caption": text, "caption_entities": entities}
        else:
            message |= {"text": text, "entities": entities}
        if thread is not None:
            message |= {"message_thread_id": int(thread), "is_topic_message": True}
        if reply_to is not None:
            quoted = next(sent for sent in self.fake.sent if str(sent.message_id) == reply_to)
            message["reply_to_message"] = self.fake.shown_message(quoted)
        chat_id = FORUM if room or thread is not None else PEOPLE[sender]
        made = await self.fake.write(self._people[sender], chat_id, **message)
        self._messages[str(made["message_id"])] = made
        return str(made["message_id"])

    async def repeat(self, message_id: str) -> None:
        await self.fake.push({"message": self._messages[message_id]})

    async def posts(self, count: int, *, chat: str) -> list[Post]:
        chat_id = FORUM if chat == "room" else PEOPLE[chat]

        def found() -> list[Sent]:
            return [sent for sent in self.fake.sent if sent.chat_id == chat_id]

        await self.fake.until(lambda: len(found()) >= count)
        return [_post(sent, chat) for sent in found()]

    async def open_thread(self) -> str:
        return str(await self.fake.open_topic(self._people["ann"], "A topic"))

    def limit_once(self, after_s: float) -> None:
        def limited(method: str, params: dict[str, Any]) -> web.StreamResponse | None:
            raise ApiError(429, f"Too Many Requests: retry after {after_s:g}", retry_after=after_s)

        self.fake.failures.append(limited)

    def lose_receipt_once(self) -> None:
        self.fake.lose_receipts += 1


def _post(sent: Sent, chat: str) -> Post:
    return Post(
        id=str(sent.message_id),
        text=sent.text,
        chat=chat,
        thread=str(sent.thread_id) if sent.thread_id is not None else None,
        reply_to=str(sent.reply_to) if sent.reply_to is not None else None,
        file=sent.file,
    )
