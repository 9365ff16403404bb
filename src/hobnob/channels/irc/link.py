"""A connection to an IRC server: registration, sign-in, joining rooms, receipts, and signs of life."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import logging
import re
import ssl
from dataclasses import dataclass, field

from hobnob.channels import Disconnected, LoginNeeded
from hobnob.channels.irc.lines import (
    MAX_LINE,
    MAX_TAGGED_LINE,
    FloodBucket,
    Line,
    fold,
    nicks,
    parse,
    sendable,
)
from hobnob.config.channels.irc import IrcAccount

_CONNECT_S, _REGISTER_S, _IDENTIFY_S, _JOIN_S = 20.0, 60.0, 5.0, 20.0
_SILENCE_S = 90.0
_CHUNK = 64 * 1024
_WANTED_CAPS = {
    "account-tag",
    "batch",
    "chghost",
    "echo-message",
    "labeled-response",
    "message-tags",
    "server-time",
}
_SASL_FAILED = {"902", "904", "905", "906", "908"}
_NOT_SENT = {
    "401",
    "402",
    "403",
    "404",
    "405",
    "407",
    "408",
    "411",
    "412",
    "413",
    "414",
    "415",
    "442",
    "482",
    "531",
}
_NOT_JOINED = {
    "403",
    "405",
    "407",
    "437",
    "442",
    "471",
    "473",
    "474",
    "475",
    "476",
    "477",
    "479",
    "489",
    "520",
}
_DENIED = re.compile(r"password|access denied", re.IGNORECASE)
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Receipt:
    """A message on its way. The server answers its lines in order, so the answer to the last is for all."""

    target: str
    token: str
    done: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    refused: str | None = None

    def settle(self, external_id: str = "") -> None:
        if not self.done.done():
            self.done.set_result(external_id)


class Link:
    """A connection. `receive` is given each line; `tick` whenever `lines` returns."""

    def __init__(
        self, settings: IrcAccount, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._writer = writer
        self._buffer = b""
        self._nicks = iter(nicks(settings.nick))
        self._offered: dict[str, str] = {}
        self._labels: dict[str, str] = {}
        self._waiting: set[str] = set()
        self._numbers = itertools.count(1)
        now = self._now()
        self._heard, self._pinged = now, False
        self._deadline: float | None = now + _REGISTER_S
        self._signed_in = not settings.sasl
        self._identify_until: float | None = None
        self.nick = ""
        self.mask: str | None = None
        self.caps: set[str] = set()
        self.features: dict[str, str] = {}
        self.rooms: set[str] = set()
        self.registered = False
        self.ready = False
        self.bucket = FloodBucket()
        self.receipt: Receipt | None = None

    @classmethod
    async def open(cls, settings: IrcAccount) -> Link:
        """Connect and begin to register. Raises Disconnected, LoginNeeded."""
        if not settings.host:
            raise LoginNeeded("The setting host is missing: it names the IRC server.")
        port = settings.port or (6697 if settings.tls else 6667)
        context = await asyncio.to_thread(ssl.create_default_context) if settings.tls else None
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(settings.host, port, ssl=context)
        except TimeoutError:
            raise Disconnected(f"{settings.host}:{port} did not answer within {_CONNECT_S:.0f} s.") from None
        except (OSError, ssl.SSLError) as error:
            raise Disconnected(f"{settings.host}:{port} cannot be reached: {error}.") from error
        link = cls(settings, reader, writer)
        link._register()
        return link

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def write(self, *words: str, tags: str = "") -> None:
        """Write a line: a command and its parameters, of which the last may have spaces."""
        *head, last = [sendable(word) for word in words]
        line = " ".join([*head, f":{last}" if not last or " " in last or last.startswith(":") else last])
        body = line.encode()[: MAX_LINE - 2].decode("utf-8", "ignore").encode()
        self._writer.write((f"@{tags} ".encode() if tags else b"") + body + b"\r\n")

    async def flush(self) -> None:
        await self._writer.drain()

    def _register(self) -> None:
        settings = self._settings
        self.write("CAP", "LS", "302")
        if settings.password and not settings.sasl:
            self.write("PASS", settings.password.get_secret_value())
        self._try_nick()
        self.write("USER", settings.username or settings.nick, "0", "*", settings.realname)

    def _try_nick(self) -> None:
        nick = next(self._nicks, None)
        if nick is None:
            raise Disconnected(f"The nick {self._settings.nick} and its variants are taken.")
        self.nick = nick
        self.write("NICK", nick)

    async def lines(self) -> list[Line]:
        """The lines that arrived; none if it is time for `tick`. Raises Disconnected at the end."""
        until = min(
            t for t in (self._heard + _SILENCE_S, self._deadline, self._identify_until) if t is not None
        )
        try:
            async with asyncio.timeout_at(until):
                chunk = await self._reader.read(_CHUNK)
        except TimeoutError:
            return []
        except (OSError, ssl.SSLError) as error:
            raise Disconnected(f"The connection was lost: {type(error).__name__}.") from error
        if not chunk:
            raise Disconnected("The server closed the connection.")
        self._heard, self._pinged = self._now(), False
        *whole, self._buffer = (self._buffer + chunk).split(b"\n")
        if len(self._buffer) > MAX_TAGGED_LINE:
            raise Disconnected(f"The server sent a line of more than {MAX_TAGGED_LINE:,} bytes.")
        parsed = (parse(raw.rstrip(b"\r")) for raw in whole if len(raw) <= MAX_TAGGED_LINE)
        return [line for line in parsed if line is not None]

    def tick(self) -> None:
        """Do what is due. Raises Disconnected when the server is silent for too long."""
        now = self._now()
        if self._identify_until is not None and now >= self._identify_until:
            self._join()
        if self._deadline is not None and now >= self._deadline:
            if not self.registered:
                raise Disconnected(f"The server did not let us in within {_REGISTER_S:.0f} s.")
            _log.warning("IRC server %s did not answer JOIN for all rooms", self._settings.host)
            self._become_ready()
        if now >= self._heard + _SILENCE_S:
            if self._pinged:
                raise Disconnected(f"The server was silent for {2 * _SILENCE_S:.0f} s.")
            self._heard, self._pinged = now, True
            self.bucket.take(now)
            self.write("PING", "alive")

    def receive(self, line: Line) -> None:
        """Follow the protocol. Messages of people are left to the caller."""
        match line.command:
            case "PING":
                self.write("PONG", line.text)
            case "ERROR":
                if not self.registered and _DENIED.search(line.text):
                    raise LoginNeeded(f"The server refused us: {self._hidden(line.text)}")
                raise Disconnected(f"The server closed the connection: {self._hidden(line.text)}")
            case "CAP":
                self._capabilities(line)
            case "AUTHENTICATE" if line.text == "+":
                self._authenticate()
            case "903" | "907":
                self._signed_in = True
                self.write("CAP", "END")
            case command if command in _SASL_FAILED:
                raise LoginNeeded(f"The server refused the sign-in by SASL: {self._hidden(line.text)}")
            case "464" | "465":
                raise LoginNeeded(f"The server refused us: {self._hidden(line.text)}")
            case "432" | "433" | "437" if not self.registered:
                if line.command == "432" and self.nick == self._settings.nick:
                    raise LoginNeeded(
                        f"The server does not accept the nick {self.nick!r}: {self._hidden(line.text)}"
                    )
                self._try_nick()
            case "001":
                self._welcomed(line)
            case "005":
                self._learn(line.params[1:-1])
            case "900" if self._identify_until is not None:
                self._join()
            case "396" if self.mask and "@" in self.mask:
                self.mask = f"{self.mask.partition('@')[0]}@{line.param(1).rpartition('@')[2]}"
            case "JOIN" | "PART" | "KICK" | "NICK" | "CHGHOST":
                self._moved(line)
            case _:
                self._answered(line)

    def _capabilities(self, line: Line) -> None:
        match line.param(1).upper():
            case "LS":
                self._offered |= dict(cap.partition("=")[::2] for cap in line.text.split())
                if line.param(2) != "*":  # more lines follow
                    self._request()
            case "ACK":
                self.caps |= set(line.text.split())
                if not self._signed_in:
                    self.write("AUTHENTICATE", "PLAIN")
                elif not self.registered:
                    self.write("CAP", "END")
            case "NAK":
                if not self._signed_in:
                    raise LoginNeeded("The server does not let us sign in by SASL.")
                self.write("CAP", "END")

    def _request(self) -> None:
        wanted = _WANTED_CAPS & self._offered.keys()
        if not {"batch", "labeled-response", "echo-message"} <= wanted:  # of use only together
            wanted -= {"batch", "labeled-response", "echo-message"}
        if not self._signed_in:
            mechanisms = self._offered.get("sasl")
            if mechanisms is None or (mechanisms and "PLAIN" not in mechanisms.upper().split(",")):
                raise LoginNeeded("The server does not offer SASL PLAIN: set sasl to false, or use nickserv.")
            wanted.add("sasl")
        if wanted:
            self.write("CAP", "REQ", " ".join(sorted(wanted)))
        else:
            self.write("CAP", "END")

    def _authenticate(self) -> None:
        settings = self._settings
        if settings.password is None:
            raise LoginNeeded("SASL needs the setting password.")
        account = settings.username or settings.nick
        plain = f"\0{account}\0{settings.password.get_secret_value()}".encode()
        encoded = base64.b64encode(plain).decode()
        pieces = [encoded[at : at + 400] for at in range(0, len(encoded), 400)]
        for piece in [*pieces, *(["+"] if len(pieces[-1]) == 400 else [])]:
            self.write("AUTHENTICATE", piece)

    def _welcomed(self, line: Line) -> None:
        if not self._signed_in:
            raise LoginNeeded("The server let us in without SASL, which the settings demand.")
        self.registered = True
        self.nick = line.param(0) or self.nick
        service = self._settings.nickserv
        if service.enabled and service.password:
            self.bucket.take(self._now())
            self.write("PRIVMSG", service.service, f"IDENTIFY {service.password.get_secret_value()}")
            self._identify_until = self._now() + _IDENTIFY_S  # rooms may be open to those who did only
        else:
            self._identify_until = self._now()  # after 005, which tells how names are compared

    def _join(self) -> None:
        self._identify_until = None
        self._deadline = self._now() + _JOIN_S
        self._waiting = {self.fold(room) for room in self._settings.channels}
        for room in self._settings.channels:
            self.bucket.take(self._now())
            self.write("JOIN", room)
        if not self._waiting:
            self._become_ready()

    def _become_ready(self) -> None:
        self._deadline = None
        self.ready = True

    def _learn(self, features: tuple[str, ...]) -> None:
        self.features |= dict(feature.partition("=")[::2] for feature in features)

    def _moved(self, line: Line) -> None:
        """Somebody joined, left or changed their name; only we matter."""
        subject = line.param(1) if line.command == "KICK" else line.nick
        if self.fold(subject) != self.fold(self.nick):
            return
        room = self.fold(line.param(0))
        match line.command:
            case "JOIN":
                self.mask = line.source
                self.rooms.add(room)
                self._joined(room)
            case "PART" | "KICK":
                self.rooms.discard(room)
                _log.warning("IRC: the bot is no longer in %s: %s", room, self._hidden(line.text))
            case "NICK":
                self.nick = line.param(0)
                self.mask = f"{self.nick}!{line.source.partition('!')[2]}" if "!" in line.source else None
            case "CHGHOST":
                self.mask = f"{self.nick}!{line.param(0)}@{line.param(1)}"

    def _joined(self, room: str) -> None:
        self._waiting.discard(room)
        if not self._waiting and not self.ready and self.registered:
            self._become_ready()

    def _answered(self, line: Line) -> None:
        """Answers to what we wrote: receipts, and refusals of messages and of joins."""
        about = self.fold(line.param(1))
        if line.command in _NOT_JOINED and about in self._waiting:
            _log.warning("IRC: cannot join %s: %s", line.param(1), self._hidden(line.text))
            self._joined(about)
        ended: str | None = None
        if line.command == "BATCH" and "label" in line.tags:
            self._labels[line.param(0)[1:]] = line.tags["label"]
        elif line.command == "BATCH":
            ended = self._labels.pop(line.param(0)[1:], None)
        if (receipt := self.receipt) is None:
            return
        if line.command in _NOT_SENT and about == self.fold(receipt.target):
            receipt.refused = self._hidden(line.text)
        label = line.tags.get("label") or self._labels.get(line.tags.get("batch", ""))
        if line.command == "PONG" and line.text == receipt.token:
            receipt.settle()
        elif label == receipt.token and (line.command in ("PRIVMSG", "ACK") or line.command in _NOT_SENT):
            receipt.settle(line.tags.get("msgid", ""))
        elif ended == receipt.token:
            receipt.settle()

    @property
    def has_labels(self) -> bool:
        return {"labeled-response", "echo-message"} <= self.caps

    def next_token(self) -> str:
        return f"h{next(self._numbers)}"

    def fold(self, name: str) -> str:
        return fold(name, self.features.get("CASEMAPPING", "rfc1459"))

    def is_room(self, name: str) -> bool:
        return name[:1] in (self.features.get("CHANTYPES") or "#&") and bool(name)

    def room_for_text(self, target: str) -> int:
        """Bytes that a message to the target may have, so that the server does not cut it for its readers."""
        mask = self.mask or f"{self.nick}!{'u' * 11}@{'h' * 63}"
        return MAX_LINE - 2 - len(f":{mask} PRIVMSG {target} :".encode())

    def _hidden(self, text: str) -> str:
        """A text of the server without our passwords."""
        for secret in (self._settings.password, self._settings.nickserv.password):
            if secret:
                text = text.replace(secret.get_secret_value(), "***")
        return text[:300]

    async def close(self) -> None:
        """Say goodbye and close the connection."""
        if self.receipt is not None and not self.receipt.done.done():
            self.receipt.done.set_exception(
                ConnectionError("The connection ended before the server confirmed.")
            )
        with contextlib.suppress(Exception):  # a courtesy: the connection may be broken in any way by now
            self.write("QUIT", "Goodbye")
            self._writer.close()
            async with asyncio.timeout(2):
                await self._writer.wait_closed()
