"""WhatsApp under test: the fake of the Cloud API, which calls the webhook of the gateway."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.channels.fake_whatsapp import APP_SECRET, NUMBER_ID, TOKEN, VERIFY_TOKEN, FakeWhatsApp, Sent
from tests.channels.platform import Post
from tests.channels.webhook_caller import Call

PEOPLE = {"ann": "15550001001", "bob": "15550001002", "eve": "15550001003", "max": "15550001004"}
GROUP = "Y2FwaV9ncm91cDoxNzA1NTU1MDEzOQZD"


class WhatsAppPlatform:
    name = "whatsapp"
    can = frozenset("media_in media_out typing reaction replay limit lost_receipt".split())

    def __init__(self, folder: Path | None = None) -> None:
        self.fake = FakeWhatsApp()
        self._calls: dict[str, Call] = {}

    @property
    def gateway_home(self) -> Path | None:
        return self.fake.caller.home

    @gateway_home.setter
    def gateway_home(self, home: Path) -> None:
        self.fake.caller.home = home

    async def start(self) -> None:
        await self.fake.start()

    async def stop(self) -> None:
        await self.fake.stop()

    def settings(self) -> dict[str, Any]:
        cloud = {
            "phoneNumberId": NUMBER_ID,
            "accessToken": TOKEN,
            "appSecret": APP_SECRET,
            "verifyToken": VERIFY_TOKEN,
            "apiUrl": self.fake.url,
        }
        return {"transport": "cloud", "cloud": cloud}

    def more_settings(self) -> dict[str, Any]:
        return {"gateway": {"port": 0}, "messages": {"groupChat": {"mentionPatterns": ["@hobnob"]}}}

    def user_id(self, person: str) -> str:
        return f"+{PEOPLE[person]}"

    def room_id(self) -> str:
        return GROUP

    def group_rules(self, rules: dict[str, Any]) -> dict[str, Any]:
        return {"groups": {GROUP: rules}}

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
        text = f"@hobnob {text}" if mention else text
        message: dict[str, Any] = {"type": "text", "text": {"body": text}}
        if file is not None:
            name, content = file
            about = {"id": self.fake.add_file(content), "filename": name, "caption": text}
            message = {"type": "document", "document": about | {"mime_type": "application/octet-stream"}}
        if reply_to is not None:
            message["context"] = {"from": "15550783881", "id": reply_to}
        number = self.fake.write(PEOPLE[sender], sender.title(), message, GROUP if room else None)
        self._calls[number] = self.fake.caller.newest
        return number

    async def repeat(self, message_id: str) -> None:
        self.fake.caller.add(self._calls[message_id])

    async def posts(self, count: int, *, chat: str) -> list[Post]:
        to = GROUP if chat == "room" else PEOPLE[chat]

        def found() -> list[Sent]:
            return [sent for sent in self.fake.sent if sent.to == to]

        await self.fake.until(lambda: len(found()) >= count)
        return [Post(sent.id, sent.text, chat, None, sent.reply_to, sent.file) for sent in found()]

    async def open_thread(self) -> str:
        raise NotImplementedError

    def limit_once(self, after_s: float) -> None:
        def limited(body: dict[str, Any]) -> Any:
            self.fake.limited[body["to"]] = time.monotonic() + after_s
            return self.fake.pair_limit()

        self.fake.failures.append(limited)

    def lose_receipt_once(self) -> None:
        self.fake.lose_receipts += 1
