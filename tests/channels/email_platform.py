"""Mail under test: real servers, people who write by SMTP, and a mailing list as the room."""

from __future__ import annotations

import asyncio
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import aiosmtplib
from tests.channels.mail_servers import AUTHSERV, BOT, PASSWORD, ImapServer, SmtpServer
from tests.channels.platform import Post
from tests.waiting import LIMIT_S

LIST = "room.lists.example.org"
LIST_ADDRESS = "room@lists.example.org"


class EmailPlatform:
    name = "email"
    can = frozenset("thread media_in media_out replay limit lost_receipt".split())

    def __init__(self, folder: Path) -> None:
        self.imap = ImapServer(folder / "imap")
        self.smtp = SmtpServer(self.imap)
        self._count = 0
        self._begun: dict[str, str] = {}
        self._opened: set[str] = set()
        self._mails: dict[str, tuple[str, bytes]] = {}

    async def start(self) -> None:
        await self.imap.start()
        await self.smtp.start()

    async def stop(self) -> None:
        await self.smtp.stop()
        await self.imap.stop()

    def settings(self) -> dict[str, Any]:
        local = {"host": "127.0.0.1", "security": "none"}
        return {
            "address": BOT,
            "password": PASSWORD,
            "imap": {**local, "port": self.imap.port},
            "smtp": {**local, "port": self.smtp.port},
            "authservId": [AUTHSERV],
        }

    def user_id(self, person: str) -> str:
        return f"{person}@example.org"

    def room_id(self) -> str:
        return LIST

    def group_rules(self, rules: dict[str, Any]) -> dict[str, Any]:
        return {"groups": {LIST: rules}}

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
        """Everybody goes on in the thread they began first, unless another is named."""
        mail = self.mail(sender)
        mail["To"] = LIST_ADDRESS if room else BOT
        if mention:
            mail["Cc"] = BOT
        chat = "room" if room else sender
        if (root := thread or self._begun.setdefault(chat, mail["Message-ID"])) != mail["Message-ID"]:
            mail["References"] = mail["In-Reply-To"] = root
        mail.set_content(text)
        if file is not None:
            kind = ("image", "png") if file[0].endswith("png") else ("text", "plain")
            mail.add_attachment(file[1], maintype=kind[0], subtype=kind[1], filename=file[0])
        return await self.post(mail, room=room)

    def mail(self, sender: str) -> EmailMessage:
        """A mail of a person without recipients and text."""
        self._count += 1
        mail = EmailMessage(policy=policy.SMTP)
        mail["From"] = f"{sender.title()} <{self.user_id(sender)}>"
        mail["Subject"] = "A question"
        mail["Message-ID"] = f"<{self._count}.{id(self)}@example.org>"
        return mail

    async def post(self, mail: EmailMessage, *, room: bool = False, envelope: str | None = None) -> str:
        """Send a mail to the bot, or through the list. Returns its Message-ID."""
        sender = envelope or str(mail["From"]).partition("<")[2].rstrip(">")
        if room:
            mail["List-Id"] = f"The room <{LIST}>"
            mail["List-Post"] = f"<mailto:{LIST_ADDRESS}>"
            mail["DKIM-Signature"] = "d=example.org"
            sender = "room-bounces@lists.example.org"
        self._mails[mail["Message-ID"]] = (sender, mail.as_bytes())
        await self._deliver(sender, mail.as_bytes())
        return str(mail["Message-ID"])

    async def _deliver(self, sender: str, content: bytes) -> None:
        await aiosmtplib.send(
            content,
            sender=sender,
            recipients=[BOT],
            hostname="127.0.0.1",
            port=self.smtp.port,
            start_tls=False,
        )

    async def repeat(self, message_id: str) -> None:
        await self._deliver(*self._mails[message_id])

    async def posts(self, count: int, *, chat: str) -> list[Post]:
        address = LIST_ADDRESS if chat == "room" else self.user_id(chat)
        async with asyncio.timeout(LIMIT_S), self.smtp.news:
            await self.smtp.news.wait_for(lambda: len(self.smtp.sent[address]) >= count)
        return [self._post(content, chat) for content in self.smtp.sent[address]]

    def _post(self, content: bytes, chat: str) -> Post:
        mail = message_from_bytes(content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        references = str(mail["References"] or "").split()
        body, files = mail.get_body(), list(mail.iter_attachments())
        return Post(
            id=str(mail["Message-ID"]),
            text=str(body.get_content()).replace("\r", "").rstrip("\n") if body else "",
            chat=chat,
            thread=references[0] if references and references[0] in self._opened else None,
            reply_to=str(mail["In-Reply-To"]) if mail["In-Reply-To"] else None,
            file=files[0].get_payload(decode=True) if files else None,  # type: ignore[arg-type]
        )

    async def open_thread(self) -> str:
        mail = self.mail("ann")
        mail["To"] = LIST_ADDRESS
        mail.set_content("Something else.")
        self._opened.add(await self.post(mail, room=True))
        return str(mail["Message-ID"])

    def limit_once(self, after_s: float) -> None:
        self.smtp.limit_once(after_s)

    def lose_receipt_once(self) -> None:
        self.smtp.lose_receipts += 1
