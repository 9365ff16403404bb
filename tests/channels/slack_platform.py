"""Slack as a platform under test: the fake in `fake_slack`."""

from __future__ import annotations

from typing import Any

from tests.channels.fake_slack import APP_TOKEN, BOT_TOKEN, BOT_USER, ROOM, FakeSlack
from tests.channels.platform import Post


class SlackPlatform:
    name = "slack"
    can = frozenset(
        "thread open_thread media_in media_out edit reaction replay limit lost_receipt".split(),
    )

    def __init__(self) -> None:
        self.fake = FakeSlack()

    async def start(self) -> None:
        await self.fake.start()

    async def stop(self) -> None:
        await self.fake.stop()

    def settings(self) -> dict[str, Any]:
        return {"botToken": BOT_TOKEN, "appToken": APP_TOKEN, "apiUrl": self.fake.api_url}

    def user_id(self, person: str) -> str:
        user = "U0" + person.upper()
        if user not in self.fake.users:
            self.fake.add_user(user, person)
        return user

    def room_id(self) -> str:
        return ROOM

    def group_rules(self, rules: dict[str, Any]) -> dict[str, Any]:
        return {"channels": {ROOM: rules}}

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
        """A reply to a message is a message in its thread: Slack has no other."""
        user = self.user_id(sender)
        channel = ROOM if room else self.fake.dm_of(user)
        written = f"<@{BOT_USER}> {text}" if mention else text
        return await self.fake.post(channel, written, user=user, thread_ts=thread or reply_to, file=file)

    async def repeat(self, message_id: str) -> None:
        for channel, messages in self.fake.messages.items():
            for message in messages:
                if message["ts"] == message_id:
                    await self.fake.deliver(channel, message)
                    return
        raise KeyError(message_id)

    async def posts(self, count: int, *, chat: str) -> list[Post]:
        channel = self._channel(chat)
        await self.fake.until(lambda: len(self.fake.sent(channel)) >= count)
        return [self._post(message, chat) for message in self.fake.sent(channel)]

    async def open_thread(self) -> str:
        return await self.fake.post(ROOM, "Let us talk about this here", user=self.user_id("ann"))

    def limit_once(self, after_s: float) -> None:
        self.fake.limit_next("chat.postMessage", after_s)

    def lose_receipt_once(self) -> None:
        self.fake.lose_receipts["chat.postMessage"] = 1

    def _channel(self, chat: str) -> str:
        return ROOM if chat == "room" else self.fake.dm_of(self.user_id(chat))

    def _post(self, message: dict[str, Any], chat: str) -> Post:
        files = message.get("files") or []
        content = self.fake.files[files[0]["id"]]["content"] if files else None
        return Post(message["ts"], message["text"], chat, thread=message.get("thread_ts"), file=content)
