"""Real mail servers on the loopback interface: pymap for IMAP, aiosmtpd for SMTP.

The SMTP server delivers mails for the bot into its mailbox, and writes `Authentication-Results` as providers
do: SPF from the sender of the envelope, DKIM for the domain that the test says has signed.
"""

from __future__ import annotations

import asyncio
import contextlib
import imaplib
import os
import socket
import ssl
import sys
from collections import defaultdict
from email import message_from_bytes
from email.message import Message
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session
from pysasl.hashing import BuiltinHash
from tests.waiting import LIMIT_S

BOT = "bot@example.org"
PASSWORD = "a-password-of-the-bot"
AUTHSERV = "mx.example.org"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ImapServer:
    """pymap with a Maildir that outlives it."""

    def __init__(self, folder: Path, *, certificate: Path | None = None) -> None:
        self.port = free_port()
        self._folder = folder
        self._certificate = certificate
        self._process: asyncio.subprocess.Process | None = None
        folder.mkdir(parents=True)
        secret = BuiltinHash(rounds=1000).hash(PASSWORD)
        files = {"etc-passwd": f"{BOT}:::::bot:", "etc-shadow": f"{BOT}:{secret}:::::::"}
        for name, line in {**files, "etc-group": "", "tokens": ""}.items():
            (folder / f"pymap-{name}").write_text(f"{line}\n" if line else "")

    async def start(self) -> None:
        if self._process is not None:
            return
        tls = ["--cert", str(self._certificate), "--key", str(self._certificate)] if self._certificate else []
        program = [Path(sys.executable).parent / "pymap", "--host", "127.0.0.1", "--port", str(self.port)]
        log = self._folder.parent / "pymap.log"
        with log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *program, *(tls or ["--no-tls"]), "maildir", str(self._folder), stdout=output, stderr=output
            )
        async with asyncio.timeout(LIMIT_S):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return
                assert self._process.returncode is None, log.read_text()
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            await process.wait()

    def renumber(self) -> None:
        """Forget the numbers of all mails, while the server is stopped: it gives them new ones."""
        for file in self._folder.rglob("dovecot-uidlist"):
            file.unlink()

    def client(self) -> imaplib.IMAP4:
        client = imaplib.IMAP4("127.0.0.1", self.port)
        client.login(BOT, PASSWORD)
        return client

    def append(self, content: bytes) -> None:
        client = self.client()
        answer, _ = client.append("INBOX", None, None, content)  # type: ignore[arg-type]
        assert answer == "OK"
        client.logout()

    def mails(self, mailbox: str = "INBOX") -> list[tuple[Message, bool]]:
        """The mails in a mailbox, and whether each is marked as seen."""
        client = self.client()
        client.select(mailbox, readonly=True)
        _, found = client.fetch("1:*", "(FLAGS BODY.PEEK[])")
        client.logout()
        rows = [row for row in found if isinstance(row, tuple)]
        return [(message_from_bytes(content), b"\\Seen" in head) for head, content in rows]


class SmtpServer:
    """aiosmtpd as the server of the bot's provider: it takes mails for the bot, and from the bot."""

    def __init__(self, imap: ImapServer, *, tls: ssl.SSLContext | None = None) -> None:
        self.port = free_port()
        self._imap = imap
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._protocols: list[SMTP] = []
        self._limit_s: float | None = None
        self._limited: dict[str, float] = {}
        self.lose_receipts = 0
        self.refuse: dict[str, str] = {}
        """Answers to RCPT by recipient."""
        self.sent: dict[str, list[bytes]] = defaultdict(list)
        """Mails for others than the bot, by recipient."""
        self.news = asyncio.Condition()

    async def start(self) -> None:
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._protocol, "127.0.0.1", self.port, ssl=self._tls)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            for protocol in self._protocols:
                if protocol.transport is not None:
                    protocol.transport.abort()  # type: ignore[attr-defined]
            self._protocols.clear()

    def limit_once(self, after_s: float) -> None:
        """Put off the next recipient of the bot for some time."""
        self._limit_s = after_s

    def _protocol(self) -> SMTP:
        made = SMTP(
            self,
            hostname=AUTHSERV,
            enable_SMTPUTF8=False,
            auth_require_tls=False,
            authenticator=self._authenticate,
            loop=asyncio.get_running_loop(),
        )
        self._protocols.append(made)
        return made

    @staticmethod
    def _authenticate(server: Any, session: Session, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        known = (data.login, data.password) == (BOT.encode(), PASSWORD.encode())
        return AuthResult(success=known, handled=False)

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if envelope.mail_from == BOT and not session.authenticated:
            return "530 5.7.0 Authentication required"
        now = asyncio.get_running_loop().time()
        if address != BOT and self._limit_s is not None:
            self._limited[address], self._limit_s = now + self._limit_s, None
        if self._limited.get(address, 0) > now:
            return "451 4.7.1 Try again later"
        if address in self.refuse:
            return self.refuse[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str | None:
        content = envelope.content
        assert isinstance(content, bytes) and envelope.mail_from is not None
        for address in envelope.rcpt_tos:
            if address == BOT:
                await asyncio.to_thread(self._imap.append, self.checked(content, envelope.mail_from))
            else:
                self.sent[address].append(content)
        async with self.news:
            self.news.notify_all()
        if envelope.mail_from == BOT and self.lose_receipts:
            self.lose_receipts -= 1
            server.transport.abort()  # type: ignore[union-attr]
        return "250 OK"

    @staticmethod
    def checked(content: bytes, mail_from: str) -> bytes:
        """The mail as it lies in the mailbox, with the results on its sender."""
        signers = BytesHeaderParser().parsebytes(content).get_all("DKIM-Signature") or []
        results = [f"spf=pass smtp.mailfrom={mail_from}"]
        results += [f"dkim=pass header.d={str(each).partition('d=')[2]}" for each in signers]
        head = f"Return-Path: <{mail_from}>\r\nAuthentication-Results: {AUTHSERV}; {'; '.join(results)}\r\n"
        return head.encode() + content


def needs_program() -> bool:
    return os.access(Path(sys.executable).parent / "pymap", os.X_OK)
