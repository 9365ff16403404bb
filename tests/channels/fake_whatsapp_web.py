"""WhatsApp as linked devices see it: a server that the native part of neonize is replaced by.

WhatsApp Web cannot be imitated on the wire: the native part connects to a fixed host, encrypted. So the
functions of that part are imitated here, with the library's own messages. Everything above them is the real
library, in the gateway under test.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neonize.aioze import client as neonize_client
from neonize.aioze import events
from neonize.events import EVENT_TO_INT
from neonize.proto import Neonize_pb2 as proto
from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.utils.jid import build_jid
from tests.channels.whatsapp_web_native import Native, serialized
from tests.waiting import LIMIT_S

# The import of neonize leaves a pipe of `uname -a` open, which the next start of a program would report.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ResourceWarning)
    while subprocess._active:  # type: ignore[attr-defined]
        subprocess._cleanup()  # type: ignore[attr-defined]

OWN_NUMBER, OWN_HIDDEN = "15550783881", "99887766"
_ROOT = Path(__file__).parents[2]
_LINE_BYTES = 16 * 1024 * 1024
_numbers = itertools.count(1)


def message(content: Any, *, sender: str = "15550001001", group: str = "", **more: Any) -> Any:
    """The library's event for a message. A text is a message without anything else."""
    if isinstance(content, str):
        content = e2e.Message(conversation=content)
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
        ID=f"3EB0{next(_numbers):04}",
        Pushname="Ann",
        Timestamp=int(time.time()),
    )
    return events.MessageEv(Info=info, Message=content)


def link(home: Path) -> None:
    """Make a state directory look as after a login."""
    folder = home / "channels" / "whatsapp" / "default"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "whatsapp.db").touch(mode=0o600)


class FakeWhatsAppWeb:
    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="whatsapp-"))  # paths of sockets must be short
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._socket = self._folder / "socket"
        self.linked = True
        self.sent: list[tuple[Any, Any]] = []
        """Messages of the bot: the chat and the message. The third has the id `3EB0OUT3`."""
        self.calls: list[tuple[str, list[Any]]] = []
        self.trouble: list[str] = []
        """Errors with which the next messages of the bot are answered."""
        self.lose_receipts = 0
        self.uploads: dict[str, bytes] = {}
        self._waiting: dict[int, Any] = {}
        self._serial = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._client: asyncio.StreamWriter | None = None
        self._serving: set[asyncio.Task[Any]] = set()
        self.news = asyncio.Condition()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._socket, limit=_LINE_BYTES)

    async def stop(self) -> None:
        """WhatsApp cannot be reached: connections end, and when this returns, clients know it."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        self._socket.unlink(missing_ok=True)
        if self._client is not None:
            self._client.write_eof()
        if self._serving:
            await asyncio.wait(self._serving, timeout=LIMIT_S)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the native part of the library in this process."""
        real = neonize_client.gocode
        neonize_client.gocode = Native(str(self._socket), declared=real)
        try:
            yield
        finally:
            neonize_client.gocode = real

    def environment(self) -> dict[str, str]:
        """With this the native part is replaced in another process."""
        folder = _ROOT / "tests" / "programs" / "whatsapp_web"
        return {"FAKE_WHATSAPP_WEB": str(self._socket), "PYTHONPATH": f"{folder}:{_ROOT}"}

    # --- What people and the phone do

    async def say(self, content: Any, **about: Any) -> str:
        """A person writes."""
        event = message(content, **about)
        await self.deliver(event)
        return str(event.Info.ID)

    async def deliver(self, event: Any) -> None:
        """Deliver a message. WhatsApp keeps it until a device has confirmed it."""
        number = next(self._serial)
        self._waiting[number] = event
        await self._emit(event, number)

    async def emit(self, event: Any) -> None:
        """Report something else to the device that is connected."""
        await self._emit(event)

    async def show_code(self, code: str) -> None:
        await self._write({"qr": code})

    async def link(self) -> None:
        """The code was scanned."""
        self.linked = True
        await self.emit(events.ConnectedEv(status=True))

    async def end_client(self, why: str) -> None:
        """The native part gives up."""
        await self._write({"end": why})

    async def posts(self, count: int) -> list[tuple[Any, Any]]:
        async with asyncio.timeout(LIMIT_S), self.news:
            await self.news.wait_for(lambda: len(self.sent) >= count)
        return self.sent

    async def called(self, name: str) -> list[Any]:
        """Wait until a function of the native part was called. Returns the arguments of the first call."""

        def found() -> list[list[Any]]:
            return [arguments for called, arguments in self.calls if called == name]

        async with asyncio.timeout(LIMIT_S), self.news:
            await self.news.wait_for(lambda: bool(found()))
        return found()[0]

    # --- The connection of a device

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._client = writer
        try:
            if self.linked:
                await self._emit(events.ConnectedEv(status=True))
                for number, event in [*self._waiting.items()]:
                    await self._emit(event, number)
            else:
                await self.show_code("2@first-code,abc,def")
            while line := await reader.readline():
                await self._take(json.loads(line))
        except ConnectionError:
            pass
        finally:
            self._serving.discard(task)
            if self._client is writer:
                self._client = None
            writer.close()

    async def _take(self, line: dict[str, Any]) -> None:
        if "received" in line:
            self._waiting.pop(line["received"], None)
            return
        name, arguments = line["call"], [_unpacked(each) for each in line["arguments"]]
        result = self._answer(name, arguments)
        async with self.news:
            self.calls.append((name, arguments))
            self.news.notify_all()
        if name == "SendMessage" and self.lose_receipts and self._client is not None:
            self.lose_receipts -= 1
            self._client.write_eof()
        elif self._server is not None:
            await self._write({"id": line["id"], "result": _text(result)})

    def _answer(self, name: str, arguments: list[Any]) -> bytes:
        found: Any
        match name, arguments:
            case "GetMe", []:
                own, hidden = build_jid(OWN_NUMBER), build_jid(OWN_HIDDEN, "lid")
                found = proto.Device(JID=own, LID=hidden, PushName="Hobnob")
            case "GetGroupInfo", [jid, _]:
                about = proto.GroupInfo(
                    JID=proto.JID.FromString(jid), GroupName=proto.GroupName(Name="The room")
                )
                found = proto.GetGroupInfoReturnFunction(GroupInfo=about)
            case "SendMessage", _ if self.trouble:
                found = proto.SendMessageReturnFunction(Error=self.trouble.pop(0))
            case "SendMessage", [to, _, content, _]:
                self.sent.append((proto.JID.FromString(to), e2e.Message.FromString(content)))
                sent = proto.SendResponse(ID=f"3EB0OUT{len(self.sent)}", Timestamp=int(time.time()))
                found = proto.SendMessageReturnFunction(SendResponse=sent)
            case "Upload", [content, size, _]:
                path = f"/v/{len(self.uploads)}"
                self.uploads[path] = content
                found = proto.UploadReturnFunction(
                    UploadResponse=proto.UploadResponse(DirectPath=path, MediaKey=b"k" * 32, FileLength=size)
                )
            case "DownloadAny", [content, _]:
                [(_, file)] = e2e.Message.FromString(content).ListFields()
                found = proto.DownloadReturnFunction(Binary=self.uploads[file.directPath])
            case "BuildReaction", [_, _, _, _, message_id, emoji]:
                reaction = e2e.ReactionMessage(text=emoji.decode(), key={"ID": message_id.decode()})
                found = proto.BuildMessageReturnFunction(Message=e2e.Message(reactionMessage=reaction))
            case "SendChatPresence" | "MarkRead", _:
                return b""
            case "Logout", []:
                self.linked = False
                return b""
            case _:
                raise NotImplementedError(name)
        return serialized(found)

    async def _emit(self, event: Any, number: int = 0) -> None:
        data = _text(serialized(event))
        await self._write({"event": EVENT_TO_INT[type(event)], "data": data, "number": number})

    async def _write(self, line: dict[str, Any]) -> None:
        if self._client is not None:
            with contextlib.suppress(ConnectionError):
                self._client.write(json.dumps(line).encode() + b"\n")
                await self._client.drain()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unpacked(argument: Any) -> Any:
    return base64.b64decode(argument["bytes"]) if isinstance(argument, dict) else argument
