"""The IMAP client of the channel `email` against a scripted server: what no real server does on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.channels.email_platform import EmailPlatform
from tests.channels.gateways import messages_of, settings_for
from tests.channels.mail_servers import BOT, SmtpServer
from tests.waiting import until

from hobnob.channels import Disconnected
from hobnob.channels.email.imap import Imap
from hobnob.config.channels.email import MailServer
from hobnob.testing import rehearse

Answers = Callable[[str], bytes | None]
"""The untagged part of the answer to a command; None ends the connection."""


@asynccontextmanager
async def imap_server(answers: Answers, *, greeting: bytes = b"* OK ready\r\n") -> AsyncIterator[int]:
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            writer.write(greeting)
            while line := (await reader.readline()).decode().rstrip("\r\n"):
                tag, _, command = line.partition(" ")
                if (answer := answers(command)) is None:
                    break
                writer.write(answer + f"{tag} OK done\r\n".encode())
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()
            serving.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await until(lambda: not serving)  # the clients have left


def plain(port: int) -> MailServer:
    return MailServer(host="127.0.0.1", port=port, security="none")


@pytest.mark.promise("email.bounded_server")
@pytest.mark.parametrize(
    "flood",
    [b"* 1 FETCH (UID 1 BODY[] {99999999}\r\n", b"* " + b"x" * 3_000_000, b"* x\r\n" * 30_000],
    ids=["literal", "line", "answers"],
)
async def test_a_server_that_sends_more_than_was_asked_for_is_left(flood: bytes) -> None:
    async with imap_server(lambda command: flood if "FETCH" in command else b"") as port:
        async with await Imap.open(plain(port), "user", "password") as imap:
            with pytest.raises(Disconnected, match="sends"):
                await imap.fetch(1, 1000)


async def test_nothing_that_was_sent_before_the_encryption_counts() -> None:
    async with imap_server(
        lambda command: b"h1 OK go on\r\n* OK [CAPABILITY IMAP4rev1] injected\r\n"
    ) as port:
        server = MailServer(host="localhost", port=port, security="starttls")
        with pytest.raises(Disconnected, match="before the encryption"):
            await Imap.open(server, "user", "password")


@pytest.mark.promise("email.hostile_mails")
async def test_a_mail_that_ends_the_connection_each_time_is_skipped(tmp_path: Path) -> None:
    second = f"From: ann@example.org\r\nTo: {BOT}\r\nMessage-ID: <2@x>\r\n\r\nhello\r\n".encode()
    second = SmtpServer.checked(second, "ann@example.org")
    fetched: list[str] = []
    is_new = False

    def answers(command: str) -> bytes | None:
        if command.startswith("SELECT"):
            return b"* OK [UIDVALIDITY 7] x\r\n* OK [UIDNEXT 1] x\r\n"
        if command.startswith("UID SEARCH"):
            first = int(command.split()[3].partition(":")[0])
            found = [str(uid) for uid in (1, 2) if is_new and uid >= first]
            return f"* SEARCH {' '.join(found)}\r\n".encode()
        if command.startswith("UID FETCH"):
            fetched.append(command.split()[2])
            if fetched[-1] == "1":
                return None
            head = f"* 2 FETCH (UID 2 RFC822.SIZE {len(second)} BODY[] {{{len(second)}}}\r\n"
            return head.encode() + second + b")\r\n"
        return b""

    async with imap_server(answers) as port:
        platform = EmailPlatform(tmp_path / "unused")
        settings = settings_for(platform, "Hello.")
        settings["channels"]["email"]["imap"]["port"] = port
        home = tmp_path / "home"
        home.mkdir()
        async with rehearse(home, settings) as gateway:
            await until(lambda: gateway.chats.statuses()[0].state == "connected")
            is_new = True
            gateway.chats.start_account("email", None)
            await until(lambda: "2" in fetched)
            assert fetched.count("1") == 3
            while not await messages_of(gateway):
                await asyncio.sleep(0.01)
            [event] = await messages_of(gateway)
            assert event.sender_id == "ann@example.org"
