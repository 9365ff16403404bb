"""WhatsApp Web under test: the library neonize, whose native part is replaced by calls to a fake."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("neonize", reason="the extra whatsapp-web is not installed", exc_type=ImportError)

from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from tests.channels.fake_whatsapp_web import OWN_NUMBER, FakeWhatsAppWeb, link, message
from tests.channels.platform import Post
from tests.waiting import LIMIT_S

from hobnob.channels.whatsapp import web

PEOPLE = {"ann": "15550001001", "bob": "15550001002", "eve": "15550001003", "max": "15550001004"}
GROUP = "120363025246125486"


class WhatsAppWebPlatform:
    name = "whatsapp"
    can = frozenset("media_in media_out typing reaction backlog limit limit_of_account lost_receipt".split())

    def __init__(self, folder: Path) -> None:
        self.fake = FakeWhatsAppWeb()
        self.environment = self.fake.environment
        self._events: dict[str, Any] = {}

    async def start(self) -> None:
        await self.fake.start()

    async def stop(self) -> None:
        await self.fake.stop()

    @contextmanager
    def hosted(self, home: Path) -> Iterator[None]:
        """A gateway of this process is linked and uses the fake."""
        limit_s = web.LIMIT_S
        link(home)
        with self.fake.installed():
            yield
        web.LIMIT_S = limit_s

    def settings(self) -> dict[str, Any]:
        return {}

    def user_id(self, person: str) -> str:
        return f"+{PEOPLE[person]}"

    def room_id(self) -> str:
        return f"{GROUP}@g.us"

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
        context = e2e.ContextInfo()
        if mention:
            context.mentionedJID.append(f"{OWN_NUMBER}@s.whatsapp.net")
        if reply_to is not None:
            context.stanzaID, context.participant = reply_to, f"{OWN_NUMBER}@s.whatsapp.net"
        if file is not None:
            content = self._file(*file, text)
        elif context.ListFields():
            content = e2e.Message(extendedTextMessage=e2e.ExtendedTextMessage(text=text, contextInfo=context))
        else:
            content = e2e.Message(conversation=text)
        event = message(content, sender=PEOPLE[sender], group=GROUP if room else "")
        self._events[event.Info.ID] = event
        await self.fake.deliver(event)
        return str(event.Info.ID)

    def _file(self, name: str, content: bytes, caption: str) -> Any:
        path = f"/v/{name}"
        self.fake.uploads[path] = content
        about = {"directPath": path, "mediaKey": b"k" * 32, "fileLength": len(content), "caption": caption}
        if name.endswith(".png"):
            return e2e.Message(imageMessage=e2e.ImageMessage(mimetype="image/png", **about))
        document = e2e.DocumentMessage(fileName=name, mimetype="text/plain", **about)
        return e2e.Message(documentMessage=document)

    async def repeat(self, message_id: str) -> None:
        await self.fake.deliver(self._events[message_id])

    async def posts(self, count: int, *, chat: str) -> list[Post]:
        user = GROUP if chat == "room" else PEOPLE[chat]

        def found() -> list[Post]:
            return [
                self._post(f"3EB0OUT{number}", content, chat)
                for number, (to, content) in enumerate(self.fake.sent, 1)
                if to.User == user and not content.HasField("reactionMessage")
            ]

        async with asyncio.timeout(LIMIT_S), self.fake.news:
            await self.fake.news.wait_for(lambda: len(found()) >= count)
        return found()

    def _post(self, message_id: str, content: Any, chat: str) -> Post:
        if content.HasField("documentMessage"):
            file = content.documentMessage
            return Post(message_id, file.caption, chat, file=self.fake.uploads[file.directPath])
        quoted = content.extendedTextMessage.contextInfo.stanzaID or None
        return Post(
            message_id, content.conversation or content.extendedTextMessage.text, chat, reply_to=quoted
        )

    async def open_thread(self) -> str:
        raise NotImplementedError("WhatsApp has no threads")

    def limit_once(self, after_s: float) -> None:
        web.LIMIT_S = after_s  # WhatsApp does not say how long
        self.fake.trouble.append("server returned error 429: rate-overlimit")

    def lose_receipt_once(self) -> None:
        self.fake.lose_receipts += 1
