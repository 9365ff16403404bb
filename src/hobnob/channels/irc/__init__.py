"""The channel `irc`. Nothing is replayed by IRC: what is said while the bot is away does not reach it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from hobnob.channels import (
    Account,
    Capabilities,
    Channel,
    Identity,
    Inbox,
    NotNow,
    Outgoing,
    Undeliverable,
)
from hobnob.channels.irc.lines import Line, cut, is_target, mentions, time_ms, unformatted
from hobnob.channels.irc.link import Link, Receipt
from hobnob.channels.text import plain_text
from hobnob.inbound import Address, Inbound, Sender
from hobnob.types import now_ms

_LINE_COST = 30
_LONGEST_WAIT_S = 5.0
_RECEIPT_S = 30.0
_BOT_TAGS = ("bot", "draft/bot", "inspircd.org/bot")


def measure(text: str) -> int:
    """The bytes of a message. A line break costs more: each line is a message, and servers limit those."""
    plain = plain_text(text)
    return len(plain.encode("utf-8", "replace")) + _LINE_COST * plain.count("\n")


class Irc(Channel):
    capabilities = Capabilities(chat_types=("direct", "group"), text_limit=350, measure=measure)

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._link: Link | None = None
        self._sending = asyncio.Lock()

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        link = await Link.open(self.account.settings)
        events = _Events(link)
        try:
            while True:
                lines = await link.lines()
                received: list[Inbound] = []
                for line in lines:
                    link.receive(line)
                    if line.command == "PRIVMSG" and (event := events.read(line)) is not None:
                        received.append(event)
                link.tick()
                if link.ready and self._link is None:
                    self._link = link
                    ready(_identity(link))
                if received:
                    await inbox.accept(received)
        finally:
            self._link = None
            await link.close()

    async def send(self, part: Outgoing) -> str:
        to = part.address.to
        if not is_target(to):
            raise Undeliverable(f"{to!r} is not a nick or a room.")
        if part.file is not None:
            raise Undeliverable("IRC has no files.")
        try:
            async with asyncio.timeout(_LONGEST_WAIT_S):
                await self._sending.acquire()
        except TimeoutError:
            raise NotNow("other messages are being sent", 1.0, scope="account") from None
        try:
            if (link := self._link) is None:
                raise NotNow("not connected yet", 1.0, scope="account")
            wait = link.bucket.wait_s(asyncio.get_running_loop().time())
            if wait > _LONGEST_WAIT_S:
                raise NotNow("the flood limit of IRC is reached", wait, scope="account")
            return await self._write(link, part)
        finally:
            self._sending.release()

    async def _write(self, link: Link, part: Outgoing) -> str:
        """Write the lines of a message and wait until the server has confirmed the last of them."""
        to = part.address.to
        lines = cut(plain_text(part.text), link.room_for_text(to))
        if not lines:
            raise Undeliverable("The message has no text.")
        receipt = link.receipt = Receipt(to, link.next_token())
        try:
            for number, line in enumerate(lines, 1):
                await self._paced(link, receipt)
                is_last = number == len(lines)
                tags = f"label={receipt.token}" if is_last and link.has_labels else ""
                link.write("PRIVMSG", to, line, tags=tags)
            if not link.has_labels:
                await self._paced(link, receipt)
                link.write("PING", receipt.token)
            await link.flush()
            await asyncio.wait([receipt.done], timeout=_RECEIPT_S)
            _check(receipt)
            if not receipt.done.done():
                raise TimeoutError(f"The server did not confirm the message within {_RECEIPT_S:.0f} s.")
            return receipt.done.result() or part.key
        finally:
            link.receipt = None

    async def _paced(self, link: Link, receipt: Receipt) -> None:
        """Wait until the flood limit lets one more line pass; fails if the connection ends meanwhile."""
        await asyncio.wait([receipt.done], timeout=link.bucket.take(asyncio.get_running_loop().time()))
        _check(receipt)

    async def probe(self) -> Identity:
        if self._link is not None:
            return _identity(self._link)
        link = await Link.open(self.account.settings)
        try:
            while not link.registered:
                for line in await link.lines():
                    link.receive(line)
                link.tick()
            return _identity(link)
        finally:
            await link.close()


def _check(receipt: Receipt) -> None:
    """Raise what is known about a message: the connection ended, or the server refused it."""
    if receipt.done.done():
        receipt.done.result()
    if receipt.refused is not None:
        raise Undeliverable(f"The server did not deliver to {receipt.target}: {receipt.refused}")


def _identity(link: Link) -> Identity:
    return Identity(link.mask or link.nick, link.nick)


class _Events:
    """Messages of one connection. Servers without message ids get ids that count the messages."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._connection = uuid.uuid4().hex
        self._count = 0

    def read(self, line: Line) -> Inbound | None:
        """A message, unless it is our own, or none of a person: notices and requests for information."""
        link, target = self._link, line.param(0)
        if "!" not in line.source or link.fold(line.nick) == link.fold(link.nick) or len(line.params) < 2:
            return None
        text = _spoken(line)
        is_direct = link.fold(target) == link.fold(link.nick)
        if text is None or not (is_direct or link.is_room(target)):
            return None
        self._count += 1
        event_id = line.tags.get("msgid") or f"{self._connection}-{self._count}"
        account = line.tags.get("account") if "account-tag" in link.caps else None
        return Inbound(
            event_id=event_id,
            message_id=event_id,
            sender=Sender(
                id=line.source,
                name=line.nick,
                username=line.nick,
                aliases=(f"account:{account}",) if account else (),
                is_bot=any(tag in line.tags for tag in _BOT_TAGS),
            ),
            chat_id=line.nick if is_direct else target.lower(),
            chat_type="direct" if is_direct else "group",
            chat_name="" if is_direct else target,
            address=Address(line.nick if is_direct else target),
            mentioned=mentions(text, link.nick),
            text=text,
            at_ms=time_ms(line.tags.get("time")) or now_ms(),
        )


def _spoken(line: Line) -> str | None:
    """The text of a message; None for requests between programs (CTCP)."""
    text = line.text
    if not text.startswith("\x01"):
        return unformatted(text)
    command, _, action = text.strip("\x01").partition(" ")
    return f"* {line.nick} {unformatted(action)}" if command == "ACTION" else None


def channel(account: Account) -> Channel:
    return Irc(account)
