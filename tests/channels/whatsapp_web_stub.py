"""A stand-in for the client of neonize, with the library's own events and messages.

WhatsApp Web cannot be imitated on the wire: the library connects to a fixed host, encrypted. So the client is
replaced here. A test checks that each of its methods is called as the real one can be called.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neonize.aioze import events
from neonize.aioze.client import NewAClient
from neonize.proto import Neonize_pb2 as proto
from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.utils.jid import build_jid
from tests.waiting import LIMIT_S

# The import of neonize leaves a pipe of `uname -a` open, which the next start of a program would report.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ResourceWarning)
    while subprocess._active:  # type: ignore[attr-defined]
        subprocess._cleanup()  # type: ignore[attr-defined]

OWN_NUMBER, OWN_HIDDEN = "15550783881", "99887766"


class Phone:
    """WhatsApp as the linked phone sees it. Each client that the channel makes is connected to it."""

    def __init__(self, *, linked: bool = True) -> None:
        self.linked = linked
        self.sent: list[tuple[Any, Any]] = []
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.trouble: list[Exception] = []
        self.uploads: dict[str, bytes] = {}
        self.clients: list[StubClient] = []
        self._numbers = itertools.count(1)
        self._news = asyncio.Condition()

    def new_client(self, database: Path, uuid: str) -> StubClient:
        self.clients.append(StubClient(self))
        return self.clients[-1]

    async def emit(self, name: str, event: Any) -> None:
        await self.clients[-1].handlers[name](self.clients[-1], event)

    async def link(self) -> None:
        """The code was scanned."""
        self.linked = True
        await self.emit("ConnectedEv", events.ConnectedEv(status=True))

    async def say(self, message: Any, *, sender: str = "15550001001", group: str = "", **more: Any) -> str:
        event = self.message(message, sender=sender, group=group, **more)
        await self.emit("MessageEv", event)
        return str(event.Info.ID)

    def message(self, message: Any, *, sender: str = "15550001001", group: str = "", **more: Any) -> Any:
        """An event of the library for a message."""
        if isinstance(message, str):
            message = e2e.Message(conversation=message)
        author = build_jid(sender)
        source: dict[str, Any] = {
            "Chat": build_jid(group, "g.us") if group else author,
            "Sender": author,
            "IsGroup": bool(group),
            "IsFromMe": False,
            **more,
        }
        info = proto.MessageInfo(
            MessageSource=proto.MessageSource(**source),
            ID=f"3EB0{next(self._numbers):04}",
            Pushname="Ann",
            Timestamp=int(time.time()),
        )
        return events.MessageEv(Info=info, Message=message)

    async def posts(self, count: int) -> list[tuple[Any, Any]]:
        async with asyncio.timeout(LIMIT_S), self._news:
            await self._news.wait_for(lambda: len(self.sent) >= count)
        return self.sent

    async def called(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Wait until a method was called. Returns its arguments."""

        def found() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
            return [call for call in self.calls if call[0] == name]

        async with asyncio.timeout(LIMIT_S), self._news:
            await self._news.wait_for(lambda: bool(found()))
        return found()[0][1:]

    async def note(self, name: str, *arguments: Any, **named: Any) -> None:
        # The real method must take these arguments, or the channel would fail with the real library.
        inspect.signature(getattr(NewAClient, name)).bind(None, *arguments, **named)
        async with self._news:
            self.calls.append((name, arguments, named))
            self._news.notify_all()


class StubClient:
    def __init__(self, phone: Phone) -> None:
        self._phone = phone
        self.handlers: dict[str, Callable[[Any, Any], Any]] = {}
        self._ended = asyncio.Event()

    def event(self, kind: type) -> Callable[[Any], None]:
        [name] = [name for name in events.__all__ if getattr(events, name) is kind]

        def register(handler: Any) -> None:
            self.handlers[name] = handler

        return register

    def qr(self, handler: Any) -> None:
        self.handlers["qr"] = handler

    async def connect(self) -> asyncio.Task[Any]:
        await self._phone.note("connect")
        if self._phone.linked:
            await self.handlers["ConnectedEv"](self, events.ConnectedEv(status=True))
        else:
            await self.handlers["qr"](self, b"2@first-code,abc,def")
        return asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._ended.wait()

    def fail(self) -> None:
        self._ended.set()

    async def stop(self) -> None:
        await self._phone.note("stop")
        self._ended.set()

    async def get_me(self) -> Any:
        await self._phone.note("get_me")
        own = build_jid(OWN_NUMBER)
        return proto.Device(JID=own, LID=build_jid(OWN_HIDDEN, "lid"), PushName="Hobnob")

    async def get_group_info(self, jid: Any) -> Any:
        await self._phone.note("get_group_info", jid)
        return proto.GroupInfo(JID=jid, GroupName=proto.GroupName(Name="The room"))

    async def send_message(self, to: Any, message: Any) -> Any:
        if self._phone.trouble:
            raise self._phone.trouble.pop(0)
        self._phone.sent.append((to, message))
        await self._phone.note("send_message", to, message)
        return proto.SendResponse(ID=f"3EB0OUT{len(self._phone.sent)}")

    async def build_document_message(self, file: bytes, **more: Any) -> Any:
        await self._phone.note("build_document_message", file, **more)
        name = f"/v/{len(self._phone.uploads)}"
        self._phone.uploads[name] = file
        about = e2e.DocumentMessage(directPath=name, fileName=more["filename"], mimetype=more["mimetype"])
        return e2e.Message(documentMessage=about)

    async def build_image_message(self, file: bytes, **more: Any) -> Any:
        await self._phone.note("build_image_message", file, **more)
        raise OSError("cannot identify image file")

    async def build_reaction(self, chat: Any, sender: Any, message_id: str, reaction: str) -> Any:
        await self._phone.note("build_reaction", chat, sender, message_id, reaction)
        return e2e.Message(reactionMessage=e2e.ReactionMessage(text=reaction))

    async def send_chat_presence(self, jid: Any, state: Any, media: Any) -> None:
        await self._phone.note("send_chat_presence", jid, state, media)

    async def mark_read(self, *message_ids: str, **more: Any) -> None:
        await self._phone.note("mark_read", *message_ids, **more)

    async def download_any(self, message: Any) -> bytes:
        await self._phone.note("download_any", message)
        return self._phone.uploads[message.documentMessage.directPath]

    async def logout(self) -> None:
        await self._phone.note("logout")
        self._phone.linked = False
