"""A client for the part of IMAP (RFC 3501, with IDLE and MOVE) that the channel needs.

Everything a server sends is bounded: lines, literals, and the number of answers to one command.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import ssl
from types import TracebackType
from typing import Self

from hobnob.channels import Disconnected, LoginNeeded
from hobnob.config.channels.email import MailServer
from hobnob.records import Struct

_CONNECT_S = 20.0
_COMMAND_S = 60.0
_FETCH_S = 300.0
_LINE_BYTES = 1024 * 1024
_LITERAL_BYTES = 1024 * 1024
_MAX_ANSWERS = 20_000
_LITERAL = re.compile(rb"\{(\d{1,10})\}\Z")
_EXISTS = re.compile(rb"\* \d{1,10} EXISTS\Z")
_PASSING = (b"[UNAVAILABLE]", b"[INUSE]", b"[LIMIT]")


class Refused(Exception):
    """The server did not carry out a command."""


class Answer(Struct, frozen=True):
    """One untagged answer, without the bytes of its literals, which follow."""

    line: bytes
    literals: tuple[bytes, ...] = ()


class Mailbox(Struct, frozen=True):
    """A mailbox that was selected. Numbers of mails are valid as long as `validity` stays the same."""

    validity: int
    next_uid: int


class Fetched(Struct, frozen=True):
    """A mail, or its beginning. `day` is the day of its arrival, as SEARCH takes it."""

    uid: int
    size: int
    day: str
    content: bytes


class Imap:
    """A connection that is signed in. Use it as a context manager."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()
        self._count = 0
        self._has_news = False
        self.capabilities: frozenset[str] = frozenset()

    @classmethod
    async def open(cls, server: MailServer, user: str, password: str) -> Imap:
        """Connect and sign in. Raises Disconnected or LoginNeeded."""
        tls = None if server.security == "none" else await asyncio.to_thread(ssl.create_default_context)
        direct = tls if server.security == "tls" else None
        port = server.port or (993 if direct else 143)
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    server.host, port, ssl=direct, limit=_LINE_BYTES
                )
        except (OSError, TimeoutError) as error:
            raise Disconnected(f"{server.host}:{port} cannot be reached: {_reason(error)}.") from error
        client = cls(reader, writer)
        try:
            async with asyncio.timeout(_COMMAND_S):
                await client._greet(tls if server.security == "starttls" else None, server.host or "")
                await client._sign_in(user, password)
        except TimeoutError:
            client._writer.transport.abort()
            raise Disconnected("The mail server did not answer in time.") from None
        except BaseException:
            client._writer.transport.abort()
            raise
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            with contextlib.suppress(Disconnected, Refused):
                await self.command(b"LOGOUT", timeout_s=2.0)
        self._writer.close()

    async def select(self, mailbox: str, *, writable: bool = True) -> Mailbox:
        verb = b"SELECT " if writable else b"EXAMINE "
        answers = b"\n".join(answer.line for answer in await self.command(verb + quoted(mailbox)))
        validity = re.search(rb"\[UIDVALIDITY (\d{1,10})\]", answers)
        following = re.search(rb"\[UIDNEXT (\d{1,10})\]", answers)
        if validity is None or following is None:
            raise Disconnected("The mail server does not number its mails (UIDVALIDITY, UIDNEXT).")
        return Mailbox(int(validity[1]), int(following[1]))

    async def search(self, criteria: str) -> list[int]:
        """The numbers (UID) of mails, in ascending order."""
        found: set[int] = set()
        self._has_news = False
        for answer in await self.command(f"UID SEARCH {criteria}".encode()):
            words = answer.line.split()
            if words[:1] == [b"SEARCH"]:
                found |= {int(word) for word in words[1:] if word.isdigit()}
        return sorted(found)

    async def find(self, message_id: str) -> list[int]:
        """The mails with a Message-ID."""
        return await self.search(f"HEADER Message-ID {quoted(message_id).decode()}")

    async def fetch(self, uid: int, limit: int) -> Fetched | None:
        """A mail, at most `limit` bytes of it; None if it is not there any more."""
        items = f"UID FETCH {uid} (UID RFC822.SIZE INTERNALDATE BODY.PEEK[]<0.{limit}>)"
        for answer in await self.command(items.encode(), timeout_s=_FETCH_S, literal_bytes=limit):
            own = re.search(rb"\bUID (\d{1,10})\b", answer.line)
            if answer.literals and own is not None and int(own[1]) == uid:
                size = re.search(rb"\bRFC822\.SIZE (\d{1,19})\b", answer.line)
                day = re.search(rb'\bINTERNALDATE "\s?(\d{1,2}-[A-Za-z]{3}-\d{4})', answer.line)
                content = max(answer.literals, key=len)
                number = int(size[1]) if size else len(content)
                return Fetched(uid, number, day[1].decode() if day else "", content)
        return None

    async def mark_seen(self, uid: int) -> None:
        await self.command(f"UID STORE {uid} +FLAGS.SILENT (\\Seen)".encode())

    async def move(self, uid: int, mailbox: str) -> None:
        await self.command(f"UID MOVE {uid} ".encode() + quoted(mailbox))

    async def sent_mailbox(self) -> str | None:
        """The mailbox that the server names for sent mails (RFC 6154)."""
        for answer in await self.command(b'LIST "" "*"'):
            found = re.match(rb'LIST \(([^)]*)\) (?:NIL|"[^"]*") (?:"([^"\\]*)"|(\S+))\Z', answer.line)
            if found is not None and b"\\sent" in found[1].lower().split():
                return (found[2] or found[3]).decode("ascii", "replace")
        return None

    async def news(self, timeout_s: float) -> None:
        """Wait until the server has reported new mails since the last search, at most some time."""
        if "IDLE" not in self.capabilities:
            await asyncio.sleep(min(timeout_s, 30.0))
            await self.command(b"NOOP")
            return
        tag = self._write(b"IDLE")
        try:
            async with asyncio.timeout(_COMMAND_S):
                while not (line := (await self._answer(_LITERAL_BYTES)).line).startswith(b"+"):
                    if line.startswith(tag):
                        raise Disconnected("The mail server refused to report news (IDLE).")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while not self._has_news:  # also if it came with the answers to other commands
                        await self._answer(_LITERAL_BYTES)
            self._writer.write(b"DONE\r\n")
            async with asyncio.timeout(_COMMAND_S):
                await self._answers(tag, _LITERAL_BYTES)
        except TimeoutError:
            raise Disconnected("The mail server did not answer in time.") from None

    async def command(
        self, text: bytes, *, timeout_s: float = _COMMAND_S, literal_bytes: int = _LITERAL_BYTES
    ) -> list[Answer]:
        """Run a command. Returns the untagged answers without `* `. Raises Refused or Disconnected."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._answers(self._write(text), literal_bytes)
        except TimeoutError:
            raise Disconnected("The mail server did not answer in time.") from None

    async def _greet(self, tls: ssl.SSLContext | None, host: str) -> None:
        greeting = (await self._answer(_LITERAL_BYTES)).line
        if not greeting.upper().startswith(b"* OK"):
            raise Disconnected("The mail server refused the connection.")
        if tls is not None:
            await self.command(b"STARTTLS")
            if self._buffer:  # sent before the encryption: whoever is on the way may have added it
                raise Disconnected("The mail server sent data before the encryption began.")
            try:
                await self._writer.start_tls(tls, server_hostname=host)
            except OSError as error:
                raise Disconnected(f"The encryption failed: {_reason(error)}.") from error

    async def _sign_in(self, user: str, password: str) -> None:
        await self._ask_capabilities()
        try:
            if "AUTH=PLAIN" in self.capabilities:
                await self._authenticate(user, password)
            else:
                await self.command(b"LOGIN " + quoted(user) + b" " + quoted(password))
        except Refused as error:
            if any(code in str(error).encode() for code in _PASSING):
                raise Disconnected(f"The mail server cannot sign us in now: {error}") from None
            raise LoginNeeded(f"The mail server does not accept the user name or password: {error}") from None
        await self._ask_capabilities()

    async def _ask_capabilities(self) -> None:
        found = [answer.line.split() for answer in await self.command(b"CAPABILITY")]
        words = [word.decode("ascii", "replace").upper() for line in found for word in line[1:]]
        self.capabilities = frozenset(words)

    async def _authenticate(self, user: str, password: str) -> None:
        tag = self._write(b"AUTHENTICATE PLAIN")
        answer = (await self._answer(_LITERAL_BYTES)).line
        if not answer.startswith(b"+"):
            raise Refused(_text(answer))
        secret = base64.b64encode(b"\0" + user.encode() + b"\0" + password.encode())
        self._writer.write(secret + b"\r\n")
        await self._answers(tag, _LITERAL_BYTES)

    def _write(self, text: bytes) -> bytes:
        """Send a command. Returns its tag."""
        self._count += 1
        tag = b"h%d " % self._count
        self._writer.write(tag + text + b"\r\n")
        return tag

    async def _answers(self, tag: bytes, literal_bytes: int) -> list[Answer]:
        found: list[Answer] = []
        while True:
            answer = await self._answer(literal_bytes)
            if answer.line.startswith(tag):
                outcome = answer.line[len(tag) :]
                if not outcome.upper().startswith(b"OK"):
                    raise Refused(_text(outcome))
                return found
            if len(found) >= _MAX_ANSWERS:
                raise Disconnected("The mail server sends too many answers.")
            if answer.line.startswith(b"* "):
                found.append(Answer(answer.line[2:], answer.literals))

    async def _answer(self, literal_bytes: int) -> Answer:
        line, left = b"", literal_bytes
        literals: list[bytes] = []
        while True:
            line += await self._line()
            size = _LITERAL.search(line)
            if size is None:
                self._has_news = self._has_news or _EXISTS.match(line) is not None
                return Answer(line, tuple(literals))
            if (left := left - int(size[1])) < 0 or len(line) > _LINE_BYTES:
                raise Disconnected("The mail server sends more than was asked for.")
            literals.append(await self._exactly(int(size[1])))
            line = line[: size.start()] + b" "

    async def _line(self) -> bytes:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > _LINE_BYTES:
                raise Disconnected("The mail server sends a line without an end.")
            await self._receive()
        line = bytes(self._buffer[:end]).rstrip(b"\r")
        del self._buffer[: end + 1]
        return line

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._receive()
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    async def _receive(self) -> None:
        try:
            data = await self._reader.read(256 * 1024)
        except OSError as error:
            raise Disconnected(f"The connection to the mail server was lost: {_reason(error)}.") from error
        if not data:
            raise Disconnected("The mail server ended the connection.")
        self._buffer += data


def quoted(text: str) -> bytes:
    """A text as a quoted string of IMAP."""
    if any(character < " " for character in text):
        raise LoginNeeded("User name, password and mailbox must not have control characters.")
    return b'"' + text.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'


def _text(outcome: bytes) -> str:
    return outcome.decode("utf-8", "replace").strip()[:200]


def _reason(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
