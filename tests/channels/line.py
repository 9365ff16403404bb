"""A channel of our own whose platform is in the process of the test: the `Line`.

The gateway loads it by `channels.line.module`, like a channel of any user.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from tests.waiting import LIMIT_S

from hobnob.channels import (
    Account,
    Capabilities,
    Channel,
    Disconnected,
    Identity,
    Inbox,
    LoginNeeded,
    Outgoing,
    Undeliverable,
)
from hobnob.inbound import Address, Inbound, Media, Sender
from hobnob.records import replace
from hobnob.types import now_ms

MODULE = Path(__file__).with_name("line_module.py")
LINES: dict[str, "Line"] = {}
Trouble = Callable[[Outgoing], Exception | None]


class Line:
    """The platform: what people say on it, and what the bot sent."""

    def __init__(self, *, trouble: Trouble | None = None, **capabilities: Any) -> None:
        self.name = f"line-{len(LINES)}"
        LINES[self.name] = self
        self.capabilities = replace(Capabilities(threads=True, media_in=True), **capabilities)
        self.trouble = trouble or (lambda _: None)
        self.sent: list[Outgoing] = []
        self.sent_at_ms: list[int] = []
        self.edits: list[tuple[str, str]] = []
        self._held_edits: dict[str, asyncio.Event] = {}
        self.reactions: list[tuple[str, str | None]] = []
        self.typing: list[Address] = []
        self.threads: list[tuple[Address, str]] = []
        self.files: dict[str, bytes] = {}
        self.channel: LineChannel | None = None
        self.connected = asyncio.Event()
        self._news = asyncio.Event()
        self._inbound: asyncio.Queue[tuple[list[Inbound], asyncio.Future[int]]] = asyncio.Queue()
        self._count = 0

    def hold_edit(self, text: str, receipt: asyncio.Event) -> None:
        """Answer the next change of a message to this text only when the event is set."""
        self._held_edits[text] = receipt

    def settings(self, **more: Any) -> dict[str, Any]:
        """The settings that connect a gateway to it; everybody may write to it directly."""
        block = {
            "module": str(MODULE),
            "options": {"line": self.name},
            "dmPolicy": "open",
            "allowFrom": ["*"],
        }
        return {"channels": {"line": block | more}}

    def message(self, text: str, sender: str = "ann", room: str | None = None, **more: Any) -> Inbound:
        self._count += 1
        number = f"m{self._count}"
        fields: dict[str, Any] = {
            "event_id": number,
            "message_id": number,
            "sender": Sender(id=f"id-{sender}", name=sender.title()),
            "chat_id": room or f"id-{sender}",
            "chat_type": "group" if room else "direct",
            "chat_name": room.title() if room else "",
            "address": Address(f"To-{room or sender}", more.get("thread_id")),
            "text": text,
            "at_ms": now_ms(),
        }
        return Inbound(**fields | more)

    async def say(self, text: str, sender: str = "ann", room: str | None = None, **more: Any) -> str:
        """A person writes. Returns the id of the message once the gateway has stored it."""
        message = self.message(text, sender, room, **more)
        await self.give([message])
        return message.event_id

    async def give(self, messages: list[Inbound]) -> int:
        taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        await self._inbound.put((messages, taken))
        async with asyncio.timeout(LIMIT_S):
            return await taken

    async def next_inbound(self) -> tuple[list[Inbound], asyncio.Future[int]]:
        return await self._inbound.get()

    def changed(self) -> None:
        self._news.set()

    async def posts(self, count: int = 1, to: str | None = None) -> list[Outgoing]:
        """Wait until the bot has sent so many messages; all of them."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                self._news.clear()
                found = [part for part in self.sent if to in (None, part.address.to)]
                if len(found) >= count:
                    return found
                await self._news.wait()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that the bot did makes a condition true."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()


class LineChannel(Channel):
    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self.line = LINES[account.settings.options["line"]]
        self.line.channel = self
        self.capabilities = self.line.capabilities

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        ready(Identity("bot", "Bot"))
        self.line.connected.set()
        while True:
            messages, taken = await self.line.next_inbound()
            if messages and messages[0].text == "/hang up":
                taken.set_result(0)
                raise Disconnected("hung up")
            if messages and messages[0].text == "/cancel yourself":
                taken.set_result(0)
                raise asyncio.CancelledError
            if messages and messages[0].text == "/bad token":
                taken.set_result(0)
                raise LoginNeeded("the token is not valid")
            try:
                taken.set_result(await inbox.accept(messages, messages[-1].event_id))
            except BaseException as error:
                taken.cancel() if isinstance(error, asyncio.CancelledError) else taken.set_exception(error)
                raise

    async def send(self, part: Outgoing) -> str:
        self.line.sent_at_ms.append(now_ms())
        if (trouble := self.line.trouble(part)) is not None:
            raise trouble
        self.line.sent.append(part)
        self.line.changed()
        return f"sent-{len(self.line.sent)}"

    async def find(self, part: Outgoing) -> str | None:
        keys = [each.key for each in self.line.sent]
        return f"sent-{keys.index(part.key) + 1}" if part.key in keys else None

    async def edit(self, address: Address, message_id: str, text: str) -> None:
        self.line.edits.append((message_id, text))
        self.line.changed()
        if (receipt := self.line._held_edits.pop(text, None)) is not None:
            await receipt.wait()

    async def delete(self, address: Address, message_id: str) -> None:
        self.line.edits.append((message_id, ""))
        self.line.changed()

    async def react(self, address: Address, message_id: str, emoji: str | None) -> None:
        self.line.reactions.append((message_id, emoji))
        self.line.changed()

    async def typing(self, address: Address) -> None:
        self.line.typing.append(address)
        self.line.changed()

    async def can_open_thread(self, address: Address) -> str | None:
        return None if self.line.capabilities.threads else "This line has no threads."

    async def open_thread(self, address: Address, title: str, root_message_id: str | None) -> str:
        self.line.threads.append((address, title))
        self.line.changed()
        return f"thread-{len(self.line.threads)}"

    async def fetch(self, media: Media, limit: int) -> AsyncIterator[bytes]:
        if media.ref not in self.line.files:
            raise Undeliverable("there is no such file")
        yield self.line.files[media.ref]

    async def probe(self) -> Identity:
        return Identity("bot", "Bot")


def channel(account: Account) -> Channel:
    return LineChannel(account)
