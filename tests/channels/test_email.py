"""The channel `email` on real servers: who is believed, threads, hostile mails, and what survives a loss."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from tests.channels.email_platform import LIST, LIST_ADDRESS, EmailPlatform
from tests.channels.gateways import (
    connected,
    deliveries_in,
    eventually,
    gateway_process,
    messages_of,
    settings_for,
    settled,
    verdicts,
)
from tests.channels.mail_servers import AUTHSERV, BOT, PASSWORD, ImapServer, SmtpServer
from tests.channels.test_commands import hobnob
from tests.integration.helpers import transcript
from tests.waiting import until

from hobnob import briefings
from hobnob.chat_types import InboxEvent
from hobnob.gateway import Gateway
from hobnob.processes import open_processes
from hobnob.testing import rehearse
from hobnob.types import text_of
from hobnob.workspaces.guest.process import GuestError
from hobnob.workspaces.guest_processes import GuestProcesses, host_spec


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[EmailPlatform]:
    made = EmailPlatform(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


async def received(gateway: Gateway, count: int) -> list[InboxEvent]:
    async def are_there() -> bool:
        return len(await messages_of(gateway)) >= count

    await eventually(are_there)
    return await messages_of(gateway)


async def shown(gateway: Gateway) -> str:
    """The last message of a person, as the model reads it."""
    key = (await messages_of(gateway))[-1].session_key
    assert key is not None
    entries = [entry for entry in await transcript(gateway, key) if entry["role"] == "user"]
    return text_of(briefings.marked(entries[-1]))


def sent_to(platform: EmailPlatform, address: str) -> list[Message]:
    return [message_from_bytes(content) for content in platform.smtp.sent[address]]


# --- Who is believed


@pytest.mark.promise("email.senders_are_proven")
async def test_a_forged_sender_is_refused_in_silence_and_the_reason_is_recorded(
    platform: EmailPlatform, home: Path
) -> None:
    async with connected(platform, home, "Hello.") as gateway:
        mail = platform.mail("ann")
        mail["To"] = BOT
        mail.set_content("It is me, really.")
        await platform.post(mail, envelope="eve@evil.example")
        [event] = await received(gateway, 1)
        assert (event.state, event.code) == ("refused", "access.unverified_sender")
        assert "ann@example.org" in event.why
        await platform.say("hello", sender="bob")
        await platform.posts(1, chat="bob")
        assert sent_to(platform, "ann@example.org") == []


@pytest.mark.promise("email.senders_are_proven")
async def test_results_that_the_sender_wrote_into_the_mail_prove_nothing(
    platform: EmailPlatform, home: Path
) -> None:
    async with connected(platform, home, "Hello.") as gateway:
        mail = platform.mail("ann")
        mail["To"] = BOT
        mail["Authentication-Results"] = f"{AUTHSERV}; dmarc=pass header.from=example.org"
        mail.set_content("It is me, really.")
        await platform.post(mail, envelope="eve@evil.example")
        [event] = await received(gateway, 1)
        assert event.code == "access.unverified_sender"


@pytest.mark.promise("email.senders_are_proven")
async def test_nobody_is_believed_while_the_own_mail_server_is_not_named(
    platform: EmailPlatform, home: Path
) -> None:
    async with connected(platform, home, "Hello.", authservId=[]) as gateway:
        await platform.say("hello")
        [event] = await received(gateway, 1)
        assert event.code == "access.unverified_sender" and "authservId" in event.why
        identity, problem = await gateway.chats.probe("email")
        assert problem is None and identity is not None and AUTHSERV in identity.detail


@pytest.mark.promise("email.lists_are_groups")
async def test_a_stranger_who_names_a_listed_mailing_list_is_not_let_in(
    platform: EmailPlatform, home: Path
) -> None:
    async with connected(platform, home, "Hello.") as gateway:
        mail = platform.mail("eve")
        mail["To"], mail["Cc"] = LIST_ADDRESS, BOT
        mail["List-Id"], mail["List-Post"] = f"<{LIST}>", f"<mailto:{LIST_ADDRESS}>"
        mail.set_content("I am one of you.")
        await platform.post(mail)
        [event] = await received(gateway, 1)
        assert event.code == "access.unverified_sender" and LIST in event.why


# --- Programs, reports, newsletters


@pytest.mark.promise("email.no_loops")
@pytest.mark.parametrize(
    ("header", "value"),
    [("Auto-Submitted", "auto-replied"), ("Precedence", "bulk"), ("List-Id", "<news.shop.example>")],
)
async def test_a_mail_of_a_program_gets_no_answer(
    platform: EmailPlatform, home: Path, header: str, value: str
) -> None:
    async with connected(platform, home, "Hello.") as gateway:
        mail = platform.mail("ann")
        mail["To"], mail[header] = BOT, value
        mail.set_content("I am on holiday.")
        await platform.post(mail)
        [event] = await received(gateway, 1)
        assert (event.state, event.code) == ("refused", "access.bot")
        assert sent_to(platform, "ann@example.org") == []


@pytest.mark.promise("email.no_loops")
async def test_a_report_on_a_lost_mail_is_ignored(platform: EmailPlatform, home: Path) -> None:
    async with connected(platform, home, "Hello.", allowBots=True) as gateway:
        mail = platform.mail("mailer-daemon")
        mail["To"], mail["X-Failed-Recipients"] = BOT, "ann@example.org"
        mail.set_content("Your mail could not be delivered.")
        await platform.post(mail)
        await platform.say("hello")
        await platform.posts(1, chat="ann")
        assert await verdicts(gateway) == ["turn"]


@pytest.mark.promise("email.no_loops")
async def test_answers_are_marked_as_automatic(platform: EmailPlatform, home: Path) -> None:
    async with connected(platform, home, "Hello."):
        await platform.say("hello")
        await platform.posts(1, chat="ann")
        [answer] = sent_to(platform, "ann@example.org")
        assert answer["Auto-Submitted"] == "auto-replied"


# --- Threads


@pytest.mark.promise("email.threads")
async def test_an_answer_stands_in_the_thread_of_the_question(platform: EmailPlatform, home: Path) -> None:
    async with connected(platform, home, "One.", "Two."):
        first = await platform.say("first")
        await platform.posts(1, chat="ann")
        second = await platform.say("second")
        await platform.posts(2, chat="ann")
        one, two = sent_to(platform, "ann@example.org")
        assert (one["In-Reply-To"], one["References"].split(), one["Subject"]) == (
            first,
            [first],
            "Re: A question",
        )
        assert two["In-Reply-To"] == second
        assert two["References"].split() == [first, one["Message-ID"], second]


@pytest.mark.promise("email.threads")
async def test_each_thread_has_a_session_of_its_own(platform: EmailPlatform, home: Path) -> None:
    async with connected(platform, home, "Hello.") as gateway:
        await platform.say("hello")
        other = platform.mail("ann")
        other["To"] = BOT
        other.set_content("Something else.")
        await platform.post(other)
        await platform.say("and then?")
        sessions = [event.session_key for event in await received(gateway, 3)]
        assert sessions[0] == sessions[2] != sessions[1]


@pytest.mark.promise("email.threads")
async def test_an_answer_to_a_mail_of_the_bot_continues_its_thread(
    platform: EmailPlatform, home: Path
) -> None:
    async with connected(platform, home, "Hello.") as gateway:
        await platform.say("hello")
        [answer] = await platform.posts(1, chat="ann")
        reply = platform.mail("ann")
        reply["To"], reply["In-Reply-To"] = BOT, answer.id
        reply.set_content("Thank you.")
        await platform.post(reply)
        first, second = await received(gateway, 2)
        assert first.session_key == second.session_key


@pytest.mark.promise("email.quotes")
async def test_what_a_reply_quotes_is_left_out(platform: EmailPlatform, home: Path) -> None:
    async with connected(platform, home, "Hello.") as gateway:
        await platform.say("hello")
        await platform.posts(1, chat="ann")
        await platform.say(
            "And now?\n\nOn Tue, Nov 17, 2026, Bot <bot@example.org> wrote:\n> Hello.\n>\n> Bye.\n"
        )
        await platform.posts(2, chat="ann")
        text = await shown(gateway)
        assert "And now?" in text and "Bye." not in text and "wrote:" not in text


# --- Hostile mails


def nested(depth: int) -> bytes:
    opening = b"".join(
        b'Content-Type: multipart/mixed; boundary="b%d"\r\n\r\n--b%d\r\n' % (n, n) for n in range(depth)
    )
    return opening + b"Content-Type: text/plain\r\n\r\nhello\r\n"


def many_parts(count: int) -> bytes:
    return b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n' + b"--b\r\n\r\nx\r\n" * count + b"--b--\r\n"


HOSTILE = {
    "deeply nested": nested(150),
    "very many parts": many_parts(3_000),
    "hostile HTML": b"Content-Type: text/html\r\n\r\n" + b"<!--" * 300_000,
    "no text at all": b"Content-Type: text/plain; charset=nonsense\r\n\r\n\xff\xfe\x00\x01",
    "broken header": b"Content-Type: multipart/mixed; boundary\r\nSubject: =?x?b?====?=\r\n\r\n--\r\n",
}


@pytest.mark.promise("email.hostile_mails")
@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_mail_keeps_nobody_from_being_answered(
    platform: EmailPlatform, home: Path, kind: str
) -> None:
    async with connected(platform, home, "Hello."):
        head = b"From: eve@example.org\r\nTo: bot@example.org\r\nMessage-ID: <bomb@example.org>\r\n"
        platform.imap.append(SmtpServer.checked(head + HOSTILE[kind], "eve@example.org"))
        await platform.say("hello")
        [answer] = await platform.posts(1, chat="ann")
        assert answer.text == "Hello."


@pytest.mark.promise("email.hostile_mails")
@pytest.mark.parametrize("mail", [nested(100_000), many_parts(2_000_000)], ids=["nested", "many"])
async def test_a_mail_that_takes_too_much_is_given_up(tmp_path: Path, mail: bytes) -> None:
    file = tmp_path / "mail"
    file.write_bytes(mail)
    async with open_processes(tmp_path / "processes") as processes:
        guests = GuestProcesses(processes, max_running=1)
        with pytest.raises((GuestError, TimeoutError)):
            await guests.run(host_spec("mails"), {"mail": str(file)}, timeout_s=20)


async def test_a_mail_in_html_is_read_as_text(platform: EmailPlatform, home: Path) -> None:
    async with connected(platform, home, "Hello.") as gateway:
        mail = platform.mail("ann")
        mail["To"] = BOT
        mail.set_content("<p>Two <b>words</b></p><script>no()</script>", subtype="html")
        await platform.post(mail)
        await platform.posts(1, chat="ann")
        text = await shown(gateway)
        assert "Two words" in text and "no()" not in text and "A question" in text


# --- Losses


@pytest.mark.promise("email.proven_by_its_copy")
async def test_a_mail_whose_receipt_was_lost_is_proven_by_its_copy(
    platform: EmailPlatform, home: Path
) -> None:
    async with connected(platform, home, "One."):
        platform.lose_receipt_once()
        await platform.say("first")
        assert await settled(home, 1) == ["delivered"]
        assert len(sent_to(platform, "ann@example.org")) == 1


@pytest.mark.promise("email.seen_after_stored")
@pytest.mark.parametrize("point", ["before-inbox", "after-inbox"])
async def test_a_mail_is_marked_as_seen_only_after_it_is_stored(
    platform: EmailPlatform, home: Path, point: str
) -> None:
    async with connected(platform, home, "One."):
        pass
    async with gateway_process(home, settings_for(platform, "One."), point) as process:
        await until(lambda: process.has_connected() or process.has_ended())
        await platform.say("first")
        await process.killed()
    [(_, seen)] = platform.imap.mails()
    assert not seen
    async with connected(platform, home, "One."):
        await platform.posts(1, chat="ann")
        assert await settled(home, 1) == ["delivered"]
        assert len(sent_to(platform, "ann@example.org")) == 1


@pytest.mark.promise("email.renumbered_mailbox")
async def test_a_mailbox_that_is_numbered_anew_loses_and_doubles_nothing(
    platform: EmailPlatform, home: Path
) -> None:
    async with connected(platform, home, "One.", "Two.") as gateway:
        await platform.say("first")
        await platform.posts(1, chat="ann")
    await platform.say("second")
    await platform.stop()
    platform.imap.renumber()
    await platform.start()
    async with connected(platform, home, "One.", "Two.") as gateway:
        assert [post.text for post in await platform.posts(2, chat="ann")] == ["One.", "Two."]
        assert await verdicts(gateway) == ["turn", "turn"]
        await platform.say("third")
        await platform.posts(3, chat="ann")
        assert await verdicts(gateway) == ["turn", "turn", "turn"]


async def test_mails_from_before_the_channel_was_set_up_are_not_answered(
    platform: EmailPlatform, home: Path
) -> None:
    await platform.say("an old question", sender="bob")
    async with connected(platform, home, "Hello.") as gateway:
        await platform.say("hello")
        await platform.posts(1, chat="ann")
        assert await verdicts(gateway) == ["turn"]


async def test_a_refused_recipient_fails_the_delivery_with_the_reason(
    platform: EmailPlatform, home: Path
) -> None:
    async with connected(platform, home, "Hello."):
        platform.smtp.refuse["ann@example.org"] = "550 5.1.1 No such user"
        await platform.say("hello")
        assert await settled(home, 1) == ["failed"]
        [(error,)] = deliveries_in(home, "error")
        assert "No such user" in error


# --- Signing in


def _status(gateway: Gateway) -> Any:
    [status] = gateway.chats.statuses()
    return status


async def test_a_wrong_password_stops_the_account_and_is_not_repeated_anywhere(
    platform: EmailPlatform, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.mkdir()
    wrong = {"password": "a-wrong-one-1234"}
    async with rehearse(home, settings_for(platform, "Hello.", **wrong)) as gateway:
        await until(lambda: _status(gateway).state == "stopped")
        assert "password" in _status(gateway).last_error
        assert "a-wrong-one-1234" not in caplog.text + _status(gateway).last_error


async def test_both_connections_are_encrypted_and_certificates_are_checked(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = tmp_path / "both.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-out", str(tmp_path / "cert.pem"), "-keyout", str(tmp_path / "key.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    pem.write_text((tmp_path / "key.pem").read_text() + (tmp_path / "cert.pem").read_text())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    platform = EmailPlatform(tmp_path / "plain")
    platform.imap = ImapServer(tmp_path / "imap", certificate=pem)
    platform.smtp = SmtpServer(platform.imap, tls=tls)
    await platform.start()
    home.mkdir()
    settings = settings_for(platform, "Hello.")
    settings["channels"]["email"]["imap"] |= {"security": "starttls"}
    settings["channels"]["email"]["smtp"] |= {"security": "tls"}
    try:
        async with rehearse(home, settings) as gateway:
            await until(lambda: _status(gateway).state == "reconnecting")
            assert "certificate" in _status(gateway).last_error
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        async with rehearse(home, settings) as gateway:
            await until(lambda: _status(gateway).state == "connected")
            content = f"From: ann@example.org\r\nTo: {BOT}\r\nMessage-ID: <1@x>\r\n\r\nhello\r\n"
            with monkeypatch.context() as plain:
                plain.setattr(platform.imap, "client", lambda: _over_tls(platform.imap))
                platform.imap.append(SmtpServer.checked(content.encode(), "ann@example.org"))
            [answer] = await platform.posts(1, chat="ann")
            assert answer.text == "Hello."
    finally:
        await platform.stop()


def _over_tls(server: ImapServer) -> Any:
    import imaplib

    client = imaplib.IMAP4("127.0.0.1", server.port)
    client.starttls(ssl._create_unverified_context())  # noqa: S323 - the test's own certificate
    client.login(BOT, PASSWORD)
    return client


async def test_a_password_is_never_sent_unencrypted_over_a_network() -> None:
    from pydantic import ValidationError

    from hobnob.config.channels.email import MailServer

    with pytest.raises(ValidationError, match="password"):
        MailServer(host="imap.example.org", security="none")


# --- Setting up


@pytest.mark.promise("email.senders_are_proven")
async def test_a_mailbox_is_set_up_by_questions_and_tested(platform: EmailPlatform, home: Path) -> None:
    home.mkdir(mode=0o700)
    local = [
        f"{server}.{name}={value}" for server in ("imap", "smtp") for name, value in (("security", "none"),)
    ]
    local += [f"imap.port={platform.imap.port}", f"smtp.port={platform.smtp.port}"]
    given = [word for setting in local for word in ("--set", setting)]
    answers = f"{BOT}\n{PASSWORD}\n127.0.0.1\n127.0.0.1\n{AUTHSERV}\n"
    output = await hobnob(home, "channels", "add", "email", *given, answers=answers)
    assert f"The platform knows the bot as {BOT}." in output
    written = (home / "hobnob.json5").read_text()
    assert AUTHSERV in written and PASSWORD in written and PASSWORD not in output
