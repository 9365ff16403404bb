"""iMessage under test: the fake of a BlueBubbles server, which calls the webhook of the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.channels.fake_bluebubbles import GATEWAY, PASSWORD, FakeBlueBubbles
from tests.channels.platform import Post

PEOPLE = {"ann": "+15550001001", "bob": "+15550001002", "eve": "eve@example.com", "max": "+15550001004"}
ROOM = "iMessage;+;chat831"


class BluebubblesPlatform:
    name = "imessage"
    can = frozenset("media_in media_out replay lost_receipt".split())

    def __init__(self, folder: Path | None = None) -> None:
        self.fake = FakeBlueBubbles()

    @property
    def gateway_home(self) -> Path | None:
        return self.fake.gateway_home

    @gateway_home.setter
    def gateway_home(self, home: Path) -> None:
        self.fake.gateway_home = home

    async def start(self) -> None:
        await self.fake.start()

    async def stop(self) -> None:
        await self.fake.stop()

    def settings(self) -> dict[str, Any]:
        server = {"serverUrl": self.fake.url, "password": PASSWORD, "webhookUrl": GATEWAY}
        return {"transport": "bluebubbles", "bluebubbles": server, "includeAttachments": True}

    def more_settings(self) -> dict[str, Any]:
        return {"gateway": {"port": 0}, "messages": {"groupChat": {"mentionPatterns": ["@hobnob"]}}}

    def user_id(self, person: str) -> str:
        return PEOPLE[person]

    def room_id(self) -> str:
        return ROOM

    def group_rules(self, rules: dict[str, Any]) -> dict[str, Any]:
        return {"groups": {ROOM: rules}}

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
        message: dict[str, Any] = {
            "text": f"@hobnob {text}" if mention else text,
            "handle": {"address": PEOPLE[sender]},
            "chats": [_chat(ROOM if room else f"iMessage;-;{PEOPLE[sender]}")],
        }
        if file is not None:
            about = {"guid": self.fake.add_file(file[1]), "transferName": file[0], "totalBytes": len(file[1])}
            message["attachments"] = [about | {"mimeType": "application/octet-stream"}]
        if reply_to is not None:
            message["threadOriginatorGuid"] = reply_to
        return str(self.fake.add(message)["guid"])

    async def repeat(self, message_id: str) -> None:
        [message] = [each for each in self.fake.messages if each["guid"] == message_id]
        self.fake.call(message)

    async def posts(self, count: int, *, chat: str) -> list[Post]:
        place = ROOM if chat == "room" else f"iMessage;-;{PEOPLE[chat]}"

        def found() -> list[dict[str, Any]]:
            own = [each for each in self.fake.messages if each["isFromMe"]]
            return [each for each in own if each["chats"][0]["guid"] == place]

        await self.fake.until(lambda: len(found()) >= count)
        return [self._post(message, chat) for message in found()]

    def _post(self, message: dict[str, Any], chat: str) -> Post:
        files = message["attachments"]
        content = self.fake.files[files[0]["guid"]] if files else None
        return Post(message["guid"], message["text"].replace("\ufffc", ""), chat, file=content)

    async def open_thread(self) -> str:
        raise NotImplementedError

    def limit_once(self, after_s: float) -> None:
        raise NotImplementedError

    def lose_receipt_once(self) -> None:
        self.fake.lose_receipts += 1


def _chat(guid: str) -> dict[str, Any]:
    return {"guid": guid, "style": 43 if ";+;" in guid else 45, "displayName": "The room"}
