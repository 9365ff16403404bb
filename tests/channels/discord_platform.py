"""Discord for the contract suite, as the fake server has it."""

from typing import Any

from tests.channels.discord_objects import BOT_ID, GUILD_ID, ROOM_ID, rate_limited
from tests.channels.fake_discord import TOKEN, FakeDiscord
from tests.channels.platform import Post


class DiscordPlatform:
    name = "discord"
    can = frozenset(
        {
            "thread",
            "open_thread",
            "media_in",
            "media_out",
            "edit",
            "typing",
            "reaction",
            "replay",
            "limit",
            "lost_receipt",
        }
    )

    def __init__(self) -> None:
        self.fake = FakeDiscord()

    async def start(self) -> None:
        await self.fake.start()

    async def stop(self) -> None:
        await self.fake.stop()

    def settings(self) -> dict[str, Any]:
        return {"token": TOKEN, "apiUrl": self.fake.api_url}

    def user_id(self, person: str) -> str:
        return self.fake.person(person)["id"]

    def room_id(self) -> str:
        return ROOM_ID

    def group_rules(self, rules: dict[str, Any]) -> dict[str, Any]:
        return {"guilds": {GUILD_ID: {"channels": {ROOM_ID: rules}}}}

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
        user_id = self.user_id(sender)
        channel_id = thread or (ROOM_ID if room else self.fake.dm(user_id)["id"])
        fields: dict[str, Any] = {}
        if reply_to is not None:
            fields["message_reference"] = {"message_id": reply_to}
        if file is not None:
            fields["files"] = [(file[0], _mime_type(file[0]), file[1])]
        content = f"<@{BOT_ID}> {text}" if mention else text
        message = await self.fake.say(user_id, channel_id, content, **fields)
        return str(message["id"])

    async def repeat(self, message_id: str) -> None:
        await self.fake.dispatch_message(self._message(message_id))

    async def posts(self, count: int, *, chat: str) -> list[Post]:
        await self.fake.until(lambda: len(self.posted(chat)) >= count)
        return self.posted(chat)

    def posted(self, chat: str) -> list[Post]:
        """The bot's messages in a chat. Those of the room's threads count as the room's."""
        if chat == "room":
            ids = [i for i, c in self.fake.channels.items() if i == ROOM_ID or c.get("parent_id") == ROOM_ID]
        else:
            ids = [self.fake.dm(self.user_id(chat))["id"]]
        found = [message for i in ids for message in self.fake.messages.get(i, ())]
        own = [message for message in found if message["author"]["id"] == BOT_ID]
        return [self._post(message, chat) for message in sorted(own, key=lambda m: int(m["id"]))]

    async def open_thread(self) -> str:
        return str((await self.fake.open_thread("a thread"))["id"])

    def limit_once(self, after_s: float) -> None:
        self.fake.faults.append(lambda _: rate_limited(after_s))

    def lose_receipt_once(self) -> None:
        self.fake.lose_receipts += 1

    def _message(self, message_id: str) -> dict[str, Any]:
        everything = [message for chat in self.fake.messages.values() for message in chat]
        return next(message for message in everything if message["id"] == message_id)

    def _post(self, message: dict[str, Any], chat: str) -> Post:
        channel_id, files = message["channel_id"], message["attachments"]
        return Post(
            id=message["id"],
            text=message["content"],
            chat=chat,
            thread=channel_id if self.fake.channels[channel_id]["type"] in (10, 11, 12) else None,
            reply_to=message.get("message_reference", {}).get("message_id"),
            file=self.fake.files[files[0]["id"]] if files else None,
        )


def _mime_type(name: str) -> str:
    return {"png": "image/png", "txt": "text/plain"}.get(name.rpartition(".")[2], "application/octet-stream")
